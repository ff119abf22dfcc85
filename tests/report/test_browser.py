"""report.html in a real browser: light, dark, narrow, printed, by keyboard and by screen reader."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compressor.report.page import render_html
from compressor.report.schema import Report
from tests.helpers.report_samples import (
    hostile_report,
    int8_report,
    mixed_report,
    with_dense_int8,
    with_samples,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# Contrast of each text with what is behind it, by the formulas of WCAG 2.1 (1.4.3, relative
# luminance); of plots, see test_plots.
CONTRASTS = """() => {
  const number = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => {
    const [r, g, b] = number(color).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (number(color).length === 3 || number(color)[3] === 1) return color;
    }
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const element = node.parentElement;
    const box = element.getBoundingClientRect();
    if (!node.data.trim() || !box.width || element.closest("style, title, desc")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [style.color, behind(element)]
      .map(luminance).sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.data.trim().slice(0, 40)]);
  }
  return found;
}"""

FOLD = "open => document.querySelectorAll('details').forEach(fold => fold.open = open)"


def engines_report() -> Report:
    """As wide as reports get: int8 and a further engine beside float32, and sample answers."""
    data = with_samples(with_dense_int8(int8_report(0.3))).model_dump()
    for row in data["throughput"]["rows"]:
        name = "CTranslate2" if row["variant"].endswith("int8") else "onnxruntime"
        row |= {"engine": name, "precision": "int8", "fastest": "dense-ctranslate2-int8"}
        row |= {"engine_speedup": 1.25, "engine_speedup_interval": (1.2, 1.3)}
        row |= {"fastest_speedup": 1.25, "fastest_speedup_interval": (1.2, 1.3)}
    text = json.dumps(data).replace("heads-50", "speedup-1.2-at-batch-16-ctranslate2")
    return Report.model_validate_json(text)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def show(browser, tmp_path_factory):
    """`show(make)`: the tab of a report's page; what it asks of a network fails the last test."""
    asked: list[str] = []
    tabs = {}

    def shown(make) -> playwright.Page:
        if make not in tabs:
            path: Path = tmp_path_factory.mktemp("page") / "report.html"
            path.write_text(render_html(make()), encoding="utf-8")
            tabs[make] = browser.new_page()
            tabs[make].on("request", lambda request: asked.append(request.url))
            tabs[make].goto(path.as_uri())
        page = tabs[make]
        page.set_viewport_size({"width": 1200, "height": 800})
        page.emulate_media(media="screen", color_scheme="light")
        page.evaluate(FOLD, False)
        return page

    yield shown
    assert asked
    assert {url for url in asked if not url.startswith("file:")} == set()


def test_no_script_from_data_runs(browser, tmp_path):
    probe = "document.documentElement.dataset.ran=1"
    attack = f"<script>{probe}</script><img src=x onerror={probe}>\"'><svg onload={probe}>"
    data = hostile_report().model_dump_json()
    assert data.count("<script>alert(1)</script>") > 50
    data = data.replace("<script>alert(1)</script>", json.dumps(attack)[1:-1])
    text = render_html(Report.model_validate_json(data))
    # Without the page's own policy, so that only escaping stands between data and script.
    text, removed = re.subn(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text)
    assert removed == 1
    # The attack works where nothing escapes it, so that its absence means something.
    for shown, ran in ((text, None), (text.replace("<h1>", f"<h1>{attack}"), "1")):
        (tmp_path / "report.html").write_text(shown, encoding="utf-8")
        page = browser.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.ran || null") == ran
        assert page.locator("section").count() == 12
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(show, scheme):
    page = show(mixed_report)
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [pair for pair in found if pair[0] < 4.5] == []
    red = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).background"))[0]
    assert (int(red) > 200) is (scheme == "light")


WIDER = """[...document.querySelectorAll('.scroll')].filter(
  e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 40))"""


@pytest.mark.parametrize("make", [engines_report, mixed_report])
def test_tables_and_plots_fit_1200_pixels_and_scroll_alone_on_a_narrow_page(show, make):
    page = show(make)
    page.evaluate(FOLD, True)
    assert page.evaluate("document.documentElement.scrollWidth") == 1200
    assert page.evaluate(WIDER) == []
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    wide = page.evaluate(WIDER)
    assert any(text.startswith("Throughput") for text in wide)
    assert not [text for text in wide if text.startswith(("Difference from dense", "4 test rows"))]


def test_print_has_everything_and_no_links_to_click(show):
    page = show(mixed_report)
    table = page.locator("#table-environment")
    assert not table.is_visible()
    page.emulate_media(media="print")
    assert table.bounding_box()["height"] > 50
    assert not page.locator("nav").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_the_keyboard_reaches_sections_tables_and_details(show):
    page = show(mixed_report)
    page.set_viewport_size({"width": 600, "height": 700})
    seen: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.getAttribute('href') || document.activeElement.tagName, "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if name == "BODY":
            break
        assert outline != "none", name
        seen.append(name)
    sections = [e.get_attribute("href") for e in page.locator("nav a").all()]
    assert seen[1 : len(sections) + 1] == sections  # after the table of the conclusion
    assert seen.count("DIV") == page.locator(".scroll:visible").count()
    assert "SUMMARY" in seen
    page.locator("#units summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-units").is_visible()
    page.locator("nav a[href='#size']").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#size"
    assert page.locator("#size").bounding_box()["y"] < 700


def test_a_screen_reader_finds_its_way(show):
    """By the accessibility tree: landmarks, headings in order, names of tables and drawings."""
    page = show(mixed_report)
    tree = page.locator("body").aria_snapshot()
    for landmark in ("- banner:", "- main:", "- contentinfo:", 'navigation "Sections"'):
        assert landmark in tree
    levels = [int(level) for level in re.findall(r"heading .*\[level=(\d)\]", tree)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert not re.search(r"^\s*- '?(table|region|img)(:|$)", tree, re.MULTILINE)  # none unnamed
    images = re.findall(r"- '?img \"", tree)
    assert len(images) == page.locator("img:visible, [role=img]:visible").count()
