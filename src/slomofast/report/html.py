"""The page: template, style, scripts, plotly and the data in one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from slomofast.core.errors import ConfigError

_SCRIPTS = ("state.js", "tables.js", "charts.js", "page.js")


def render_page(payload: Mapping[str, Any]) -> str:
    """The whole page as text. Raises `ConfigError` when plotly is not installed."""
    folder = resources.files(__package__).joinpath("page")
    page = folder.joinpath("index.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": _escaped(str(payload["title"])),
        "STYLE": folder.joinpath("style.css").read_text(encoding="utf-8"),
        "DATA": script_json(payload),
        "PLOTLY": _plotly(),
        "SCRIPT": "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    pieces = page.split("@@")  # text and names of parts in turn; the parts themselves are never searched
    if len(pieces) % 2 == 0:
        raise ValueError("the page template has an unpaired @@")
    return "".join(piece if n % 2 == 0 else parts[piece] for n, piece in enumerate(pieces))


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no `</`, no `<!--`, no line separators.

    >>> script_json({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError("the HTML page needs plotly: pip install 'slomofast[report]'") from None
    return str(get_plotlyjs()).replace("</script", "<\\/script")
