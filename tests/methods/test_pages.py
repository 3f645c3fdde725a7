"""Every method has a page, and the options on it are those of the code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from slomofast import describe, list_methods

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh_options", DOCS / "refresh_options.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", list_methods())
def test_page_holds_the_options_as_they_are(writer: ModuleType, method: str) -> None:
    path = DOCS / "methods" / f"{method}.md"
    assert path.is_file(), f"write docs/methods/{method}.md"
    page = path.read_text(encoding="utf-8")
    missing = [item["name"] for item in describe(method).options if f"`{item['name']}`" not in page]
    assert not missing, f"docs/methods/{method}.md does not name {missing}"
    assert writer.refreshed(page, method) == page, "the options changed: run `python docs/refresh_options.py`"


def test_a_changed_option_is_noticed_and_put_right(writer: ModuleType) -> None:
    page = (DOCS / "methods" / "roid.md").read_text(encoding="utf-8")
    stale = page.replace("| `source_momentum` | `0.99` |", "| `source_momentum` | `0.5` |")
    assert stale != page
    assert writer.table("roid") not in stale and writer.refreshed(stale, "roid") == page
