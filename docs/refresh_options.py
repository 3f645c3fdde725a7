"""Write each method's options into its page, between the two option marks: `python docs/refresh_options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import slomofast

PAGES = Path(__file__).parent / "methods"
BEGIN, END = "<!-- options: written by docs/refresh_options.py -->", "<!-- end of options -->"


def table(method: str) -> str:
    """The options of a method as a Markdown table; presets that change a value stand in its row."""
    info = slomofast.describe(method)
    config = info.adapter.Config
    lines = ["| option | default | range | meaning |", "|---|---|---|---|"]
    for item in info.options:
        name, default = item["name"], item["default"]
        values = [f"`{_text(default)}`"]
        for preset, changes in config.PRESETS.items():
            if name in changes and changes[name] != default:
                values.append(f"{preset} `{_text(changes[name])}`")
        lines.append(f"| `{name}` | {', '.join(values)} | {_range(item)} | {item['help']} |")
    return "\n".join(lines)


def refreshed(page: str, method: str) -> str:
    """The page with its options as they are now; a page without marks stays as it is."""
    if BEGIN not in page:
        return page
    head, rest = page.split(BEGIN, 1)
    return f"{head}{BEGIN}\n\n{table(method)}\n\n{END}{rest.split(END, 1)[1]}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _range(item: dict[str, Any]) -> str:
    if item["choices"]:
        return "any of " + ", ".join(map(str, item["choices"]))
    if item["type"] in ("int", "float"):
        signs = {"above": ">", "low": "≥", "high": "≤"}
        bounds = [f"{sign} {item[key]:g}" for key, sign in signs.items() if item[key] is not None]
        return ", ".join(bounds)
    return "true, false" if item["type"] == "bool" else str(item["type"]).replace(" | ", ", ")


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = refreshed(before, path.stem)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"refreshed {path.name}")
