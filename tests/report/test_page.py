"""The page in a real browser: charts drawn, filters and sorting work, keyboard, phone, nothing leaves the page.

Without Chromium and Playwright these tests skip. `SLOMOFAST_SCREENSHOTS=1` also writes docs/images/report-*.png.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_up
import pytest

from slomofast.report import build_report

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the page is tested through Playwright: pip install playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: apt-get install chromium)")

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CHARTS = ("time", "cycles", "shift", "recovery", "forgetting", "cost", "maps")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        engine = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield engine
        engine.close()


class Visitor:
    """Opens pages and remembers what they complained about and what they asked the network for."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.contexts: list[Any] = []

    def open(self, path: Path, anchor: str = "", width: int = 1280, height: int = 900, scheme: str = "light") -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda m: self.noise.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.noise.append(str(e)))
        page.on("request", lambda r: self.requests.append(r.url))
        page.goto(path.as_uri() + anchor)
        page.wait_for_load_state("load")
        return page

    def check(self) -> None:
        """Nothing was complained about and nothing left the page."""
        assert self.noise == []
        assert self.requests
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def desk(browser: Any, small_report: Path) -> Iterator[tuple[Visitor, Any]]:
    """The small report, opened once for the tests that only use it."""
    visitor = Visitor(browser)
    yield visitor, visitor.open(small_report)
    for context in visitor.contexts:
        context.close()


@pytest.fixture
def page(desk: tuple[Visitor, Any]) -> Iterator[Any]:
    """The shared page with its first selection; at the end it must have kept quiet and to itself."""
    visitor, page = desk
    page.evaluate(
        """() => {
          document.activeElement.blur();
          document.querySelectorAll("main details").forEach((part) => { part.open = false; });
          state.seed = "mean"; state.group = 0;
          DATA.methods.forEach((_, m) => state.methods.add(m));
          $("find").value = ""; fillSelection(); draw(); drawRecords(); window.scrollTo(0, 0);
        }"""
    )
    yield page
    visitor.check()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a page of one's own, watched in the same way."""
    visitor = Visitor(browser)
    yield visitor.open
    for context in visitor.contexts:
        context.close()
    visitor.check()


def traces(page: Any, chart: str) -> list[str]:
    """Names of the lines a chart really drew."""
    return page.evaluate(
        f"[...document.querySelectorAll('#chart-{chart} .scatterlayer .trace')].map(t => t.className.baseVal)"
    )


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"#{table} tbody tr > :nth-child({number})").all_inner_texts()


def chip(page: Any, method: str) -> Any:
    return page.locator("#methods").get_by_label(method, exact=True)


def test_every_chart_is_drawn_and_described(page: Any) -> None:
    page.select_option("#setting", "cyclic")
    for chart in CHARTS:
        assert page.locator(f"#chart-{chart} .main-svg").first.is_visible(), chart
        assert len(page.locator(f"#chart-{chart}").get_attribute("aria-label")) > 20
        assert page.locator(f"#alt-{chart} tbody tr").count() > 1
    assert len(traces(page, "time")) == 4 and len(traces(page, "cycles")) == 4
    assert page.locator("#chart-forgetting .heatmaplayer image").count() == 1
    assert page.locator("#chart-recovery .barlayer .point").count() == 4
    before = page.evaluate("document.getElementById('chart-forgetting').data[0].z")
    page.select_option("#forgetting-method", label="SloMo-Fast: slow")
    after = page.evaluate("document.getElementById('chart-forgetting').data[0].z")
    assert before != after and all(not v for row in after for v in row)  # the made-up slow teacher forgets nothing
    bands = page.evaluate("document.getElementById('chart-time').layout.shapes.length")
    assert bands == 30
    assert page.locator("#absent").inner_text() == ""


def test_parts_without_data_are_hidden_and_named(page: Any) -> None:
    page.select_option("#setting", "mixed")
    for part in ("cycles", "recovery", "forgetting", "maps", "shift"):
        assert page.locator(f"#{part}").is_hidden(), part
        assert page.locator(f"#nav a[href='#{part}']").is_hidden()
    assert "no domain comes back" in page.locator("#absent").inner_text()
    assert page.locator("#chart-time .main-svg").first.is_visible()


def test_choosing_setting_data_methods_and_seed(page: Any) -> None:
    assert page.locator("#experiment").inner_text().startswith("Continual · CIFAR10-C")
    assert "TENT (lr=0.01)" in column(page, "ranking-table", 1)
    page.select_option("#data", "glyphs")
    assert page.locator("#experiment").inner_text().startswith("Continual · Glyphs")
    assert sorted(column(page, "ranking-table", 1)) == ["Source", "TENT"]
    page.select_option("#setting", "cyclic")
    assert page.locator("#experiment").inner_text().startswith("Cyclic · CIFAR10-C")

    chip(page, "ROID").uncheck()
    assert len(traces(page, "time")) == 3
    assert "ROID" not in column(page, "ranking-table", 1) and len(column(page, "domain-table", 1)) == 3
    assert page.locator("#method-count").inner_text() == "3 of 4"
    page.get_by_role("button", name="None").click()
    assert column(page, "ranking-table", 1) == []
    page.get_by_role("button", name="All", exact=True).click()
    assert len(traces(page, "time")) == 4

    mean = page.evaluate("document.getElementById('chart-time').data[1].y")
    page.select_option("#seed", "1")
    single = page.evaluate("document.getElementById('chart-time').data[1].y")
    assert mean != single and len(mean) == len(single)


def test_a_link_shows_what_its_sender_saw(page: Any, open_page: Open, small_report: Path) -> None:
    page.select_option("#setting", "cyclic")
    chip(page, "TENT").uncheck()
    anchor = page.evaluate("location.hash")
    other = open_page(small_report, anchor)
    assert other.locator("#experiment").inner_text().startswith("Cyclic")
    assert other.locator("#method-count").inner_text() == "3 of 4"


def test_points_say_which_records_they_come_from(page: Any, small_store: Path) -> None:
    ids = {path.stem for path in small_store.glob("*.json")}
    named = page.evaluate("document.getElementById('chart-time').data.map(t => t.hovertemplate)")
    assert all(set(re.findall(r"\b[0-9a-f]{16}\b", text)) & ids for text in named)
    point = page.locator("#chart-cost .scatterlayer .point").first
    page.evaluate("document.getElementById('cost').scrollIntoView({behavior: 'instant', block: 'center'})")
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#chart-cost .hoverlayer text")
    shown = page.locator("#chart-cost .hoverlayer").text_content()
    (hit,) = set(re.findall(r"[0-9a-f]{16}", shown)[:1])
    assert hit in ids
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function("document.getElementById('find').value.length === 16")
    assert column(page, "record-table", 1) == [page.input_value("#find")]


@pytest.mark.parametrize("table", ["ranking-table", "domain-table", "paper-table", "record-table"])
def test_tables_sort_by_click_and_key(page: Any, table: str) -> None:
    number = {"ranking-table": 2, "domain-table": 3, "paper-table": 5, "record-table": 7}[table]
    head = page.locator(f"#{table} thead th:nth-child({number})")

    def values() -> list[float]:
        found = [re.match(r"[\d.]+", text) for text in column(page, table, number)]
        return [float(m[0]) for m in found if m]

    head.get_by_role("button").click()
    first = head.get_attribute("aria-sort")
    up = values()
    assert len(set(up)) > 1 and up == sorted(up, reverse=first == "descending")
    page.keyboard.press("Enter")  # focus must have stayed on the button
    assert {first, head.get_attribute("aria-sort")} == {"ascending", "descending"}
    assert values() == sorted(up, reverse=first == "ascending")
    assert page.locator(f"#{table} thead th[aria-sort]").count() == 1


def test_published_numbers_carry_their_doubts(page: Any) -> None:
    page.select_option("#setting", "cyclic")
    marks = page.locator("#ranking-table abbr.flag")
    assert marks.count() == 4
    assert "15.2" in "".join(column(page, "ranking-table", 4))
    assert all(text.startswith("Known problem: ") for text in marks.evaluate_all("m => m.map(x => x.ariaLabel)"))
    page.select_option("#table", label="Summary")
    assert page.locator("#paper-table tr.published").count() > 0
    assert page.locator("#paper-table .footnotes li").count() > 0


def test_the_keyboard_is_enough(open_page: Open, small_report: Path) -> None:
    page = open_page(small_report)  # of its own: the order of focus starts at the top of a fresh page
    focus = "document.activeElement.id || document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate(focus) == "ranking"
    page.locator("#methods input").first.focus()
    assert page.evaluate("getComputedStyle(document.querySelector('.chip')).outlineStyle") == "solid"
    before = len(traces(page, "time"))
    page.keyboard.press("Space")
    assert len(traces(page, "time")) == before - 1
    page.locator("#chart-time + details summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#alt-time table").is_visible()
    page.locator("#setting").focus()
    page.keyboard.press("ArrowDown")
    assert not page.locator("#experiment").inner_text().startswith("Continual")
    assert "shown" in page.locator("#live").text_content()


NAMELESS = """() => {
  const by = (node) => document.getElementById(node.getAttribute("aria-labelledby"))?.textContent;
  const named = (node) => node.ariaLabel || by(node) || node.labels?.length || node.textContent.trim();
  const parts = "select, input, button, section, table, [role=img], [role=region], nav, a";
  return [...document.querySelectorAll(parts)]
    .filter((node) => !node.closest(".modebar") && !node.closest("[hidden]") && !named(node))
    .map((node) => node.outerHTML.slice(0, 80));
}"""


def test_everything_has_a_name_for_screen_readers(page: Any) -> None:
    unnamed = page.evaluate(NAMELESS)
    assert unnamed == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("table th[scope]").count() == page.locator("table th").count()


TOO_WIDE = """(width) => {
  const parts = document.querySelectorAll("main section, main .chart svg, header, .controls, .controls *");
  const out = [...parts].filter((node) => node.getBoundingClientRect().right > width + 1);
  return out.map((node) => node.outerHTML.slice(0, 80));
}"""


def test_a_phone_shows_it_without_sideways_scrolling(open_page: Open, small_report: Path) -> None:
    page = open_page(small_report, width=390, height=800)
    page.select_option("#setting", "cyclic")
    for summary in page.locator("main details summary").all():
        summary.click()
    for width in (390, 360, 768):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(400)  # charts follow the window with a delay
        page.evaluate("window.scrollTo(500, 0)")
        assert page.evaluate("[document.documentElement.scrollWidth, window.scrollX]") == [width, 0]
        assert page.evaluate(TOO_WIDE, width) == []


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$|transparent/.test(color)) return rgb(color);
    }
    return [255, 255, 255];
  };
  const texts = `h1, h2, p.sub, .caption, thead th, .card dt, .card .big, .card .small, nav a, .field, summary,
    tr.published td, .quiet`;
  return [...document.querySelectorAll(texts)].filter((node) => node.offsetParent).map((node) => {
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 70)];
  });
}"""


def test_light_and_dark_follow_the_system_and_the_button(page: Any, open_page: Open, small_report: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "document.getElementById('chart-time').data[0].line.color"
    dark = open_page(small_report, scheme="dark")
    assert page.evaluate(ground) != dark.evaluate(ground) and page.evaluate(line) != dark.evaluate(line)
    for side in (page, dark):
        ratios = side.evaluate(CONTRAST)
        assert len(ratios) > 40
        assert [pair for pair in ratios if pair[0] < 4.5] == []
    colours = page.evaluate(ground), page.evaluate(line)
    dark.get_by_role("button", name="Change between light and dark").click()
    assert (dark.evaluate(ground), dark.evaluate(line)) == colours


def test_searching_and_paging_records(open_page: Open, tmp_path: Path) -> None:
    made_up.write_store(tmp_path / "runs", made_up.many(120, batches=1))
    page = open_page(build_report(tmp_path / "runs", tmp_path / "out"))
    assert len(column(page, "record-table", 1)) == 50
    page.get_by_role("button", name="Next", exact=True).click()
    assert "51 to 100 of 120" in page.locator("#record-table .pages").inner_text()
    page.fill("#find", "source lr=0.01 cifar10_c mixed")
    page.wait_for_function("document.querySelectorAll('#record-table tbody tr').length < 50")
    rows = page.locator("#record-table tbody tr").all_inner_texts()
    assert rows and all("lr=0.01" in row and "CIFAR10-C" in row for row in rows)


def test_hostile_names_stay_text(open_page: Open, tmp_path: Path) -> None:
    evil = "<b>x</b><img src=x onerror=document.title='owned'></script>"
    record = made_up.make_record("tent", "cyclic", batches=2, forgetting=True, warnings=[evil])
    record["job"]["method"] = evil
    domains = [f"{evil}{name}" for name in made_up.DOMAINS]
    record["curve"] |= {"domains": domains, "groups": {evil: domains}}
    record["metrics"]["error"]["by_domain"] = dict.fromkeys(domains, 5.0)
    record["metrics"]["forgetting"] |= {"domains": domains, "visits": domains * 2}
    made_up.write_store(tmp_path / "runs", [record])
    page = open_page(build_report(tmp_path / "runs", tmp_path / "out", title=evil))
    assert column(page, "ranking-table", 1) == [evil] and page.locator("h1").inner_text() == evil
    for chart, trace in (("time", 0), ("recovery", 1), ("forgetting", 0)):
        drawn = page.evaluate(f"(({{customdata, y, name}}) => [customdata, y, name])($('chart-{chart}').data[{trace}])")
        assert "&lt;b&gt;x" in str(drawn) and "<b>" not in str(drawn), chart
    labels = page.locator("#chart-forgetting .ytick text").all_text_contents()
    assert labels and set(labels) <= {name.replace("_", " ") for name in domains}
    assert page.locator("#chart-recovery .xtick text").text_content() == evil
    assert page.title() == evil and page.locator("body img").count() == 0


def test_the_verdict_says_why_there_is_none(open_page: Open, tmp_path: Path) -> None:
    def record(method: str, error: float, domains: int, batch_size: int) -> dict[str, Any]:
        """Streams with the batch size tell the two experiments apart."""
        made = made_up.make_record(method, batches=1, batch_size=batch_size)
        made["curve"] = None
        made["metrics"]["error"] = {"mean": error, "by_domain": dict.fromkeys(made_up.DOMAINS[:domains], error)}
        return made

    rows = [record(m, e, n, 10 * n) for n in (3, 15) for m, e in (("tent", 20.0), ("roid", 19.0))]
    seeds = [made_up.make_record(m, "cyclic", batches=2, seed=s) for m in ("tent", "roid") for s in (0, 1)]
    repeat = made_up.make_record("tent", "cyclic", batches=2) | {"id": "again", "started": "2024-01-01"}
    made_up.write_store(tmp_path / "runs", [*rows, *seeds, repeat])
    page = open_page(build_report(tmp_path / "runs", tmp_path / "out"))
    texts = {}
    for number in range(page.evaluate("DATA.groups.length")):
        page.evaluate(f"state.group = {number}; fillSelection(); draw()")
        texts[page.locator("#experiment").inner_text().split(" · ")[-1]] = column(page, "ranking-table", 3)
    few, alike, cycles = (next(v for k, v in texts.items() if word in k) for word in ("of 30", "of 150", "of 100"))
    assert few == ["−1.00 too few pairs", "+1.00 too few pairs"]
    assert alike == ["−1.00 all pairs alike", "+1.00 all pairs alike"]
    assert "better" in cycles[0] and "worse" in cycles[1] and "[" in cycles[0]
    notes = page.locator("#notes").inner_text()
    assert "repeat a seed" in notes and "again" in notes and "seed 0 counts with" in notes


def test_an_empty_store_and_a_damaged_one_say_what_is_wrong(open_page: Open, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    page = open_page(build_report(tmp_path / "runs", tmp_path / "out"))
    assert "no records here yet" in page.locator("#empty").inner_text()
    assert page.locator("#controls").is_hidden() and page.locator("#ranking").is_hidden()
    (tmp_path / "runs" / "cut.json").write_text('{"format": 1')
    page = open_page(build_report(tmp_path / "runs", tmp_path / "out"))
    assert "cut.json" in page.locator("#notes").inner_text() and "cut short" in page.locator("#notes").inner_text()
    assert "1 file skipped" in page.locator("#counts").inner_text()


@pytest.mark.skipif(not os.environ.get("SLOMOFAST_SCREENSHOTS"), reason="set SLOMOFAST_SCREENSHOTS=1 to take pictures")
def test_take_screenshots(open_page: Open, tmp_path: Path) -> None:
    """Pictures for the documentation, of made-up records."""
    made_up.write_store(tmp_path / "runs", made_up.showcase())
    report = build_report(tmp_path / "runs", tmp_path / "out", title="Made-up records")
    images = Path(__file__).parents[2] / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    views = (("desktop", 1280, 960, "light", ""), ("dark", 1280, 960, "dark", "time"), ("phone", 390, 844, "light", ""))
    for name, width, height, scheme, part in views:
        page = open_page(report, width=width, height=height, scheme=scheme)
        page.select_option("#setting", "cyclic")
        if part:
            page.evaluate(f"document.getElementById('{part}').scrollIntoView({{behavior: 'instant'}})")
        page.wait_for_timeout(300)
        page.screenshot(path=images / f"report-{name}.png")
        assert (images / f"report-{name}.png").stat().st_size > 20_000


@pytest.mark.slow
def test_twenty_thousand_records_open_in_seconds(open_page: Open, tmp_path: Path) -> None:
    """Also prints what docs/report.md states; run with `-m slow -s`."""
    made_up.write_store(tmp_path / "runs", made_up.many(20_000))
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        report = build_report(tmp_path / "runs", tmp_path / "out")
        times.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    page = open_page(report)
    opened = time.perf_counter() - begun
    shown = page.evaluate(
        """() => { const t = performance.now(); const s = $("setting"); s.value = "lifelong";
          s.dispatchEvent(new Event("change")); return performance.now() - t; }"""
    )
    size = report.stat().st_size / 1e6
    print(
        f"\nfirst report {times[0]:.1f} s, again {times[1]:.1f} s, {size:.1f} MB, opens in {opened:.1f} s, "
        f"another setting in {shown:.0f} ms"
    )
    assert page.locator("#counts").inner_text().startswith("20,000 records")
    assert times[1] < times[0] and opened < 10 and shown < 3000 and size < 20
