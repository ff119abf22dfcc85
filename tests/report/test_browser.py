"""report.html in a real browser: its colors, narrow, printed, by keyboard and by screen reader."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image as mpimg
import numpy as np
import pytest

from compressor.report import page as pages
from compressor.report.build_view import build_view
from compressor.report.schema import Report
from tests.helpers.report_samples import (
    hostile_report,
    mixed_report,
    tokens_report,
    with_dense_int8,
    with_samples,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
FOLD = "open => document.querySelectorAll('details').forEach(fold => fold.open = open)"


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """The page of a report with everything in it; asking anything of a network fails a test."""
    report = with_samples(with_dense_int8(mixed_report()))
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(pages.render_html(build_view(report)), encoding="utf-8")
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert {url for url in asked if not url.startswith("file:")} == set()
    assert asked


@pytest.fixture(scope="module")
def with_tokens(browser, tmp_path_factory):
    """The page of a report in which two models hand on fewer tokens."""
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(pages.render_html(build_view(tokens_report())), encoding="utf-8")
    page = browser.new_page()
    page.set_viewport_size({"width": 1200, "height": 800})
    page.goto(path.as_uri())
    page.evaluate(FOLD, True)
    return page


def test_shares_of_tokens_stand_in_tables_that_fit(with_tokens):
    assert with_tokens.evaluate("document.documentElement.scrollWidth") == 1200
    assert with_tokens.evaluate(WIDER) == []
    row = with_tokens.locator("#table-units tr", has_text="encoder_tokens.2")
    assert row.locator("td").all_inner_texts() == ["100%", "30%", "20%"]
    column = with_tokens.locator("#table-size td[data-title=Tokens]")
    assert column.all_inner_texts() == ["100%", "100%", "67%", "50%"]
    plot = with_tokens.get_by_role("img", name="Heads, neurons and tokens that each layer keeps")
    assert plot.bounding_box()["width"] > 600
    assert "share of a row's tokens that a layer hands on" in with_tokens.inner_text("#size")


@pytest.fixture
def page(opened):
    opened.set_viewport_size({"width": 1200, "height": 800})
    opened.emulate_media(media="screen")
    opened.evaluate(FOLD, False)
    return opened


def test_no_script_from_data_runs(browser, tmp_path):
    probe = "document.documentElement.dataset.ran=1"
    attack = f"<script>{probe}</script><img src=x onerror={probe}>\"'><svg onload={probe}>"
    data = hostile_report().model_dump_json()
    assert data.count("<script>alert(1)</script>") > 50
    data = data.replace("<script>alert(1)</script>", json.dumps(attack)[1:-1])
    text = pages.render_html(build_view(Report.model_validate_json(data)))
    # Without the page's own policy, so that only escaping stands between data and script.
    text, removed = re.subn(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text)
    assert removed == 1
    # The attack works where nothing escapes it, so that its absence means something.
    for shown, ran in ((text, None), (text.replace("<h1>", f"<h1>{attack}"), "1")):
        (tmp_path / "report.html").write_text(shown, encoding="utf-8")
        page = browser.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.ran || null") == ran
        page.close()


def luminance(color: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_can_be_read_on_light_and_on_dark():
    css = Path(pages.__file__).with_name("page.css").read_text("utf-8")
    found = re.findall(r"--(\w+): (#\w{6});", css)
    light, dark = dict(found[: len(found) // 2]), dict(found[len(found) // 2 :])
    assert light.keys() == dark.keys()
    for colors in (light, dark):
        for text, paper in itertools.product(
            ("text", "soft", "link", "good", "bad"), ("page", "panel")
        ):
            low, high = sorted(luminance(colors[x]) + 0.05 for x in (text, paper))
            assert high / low > 4.5


WIDER = """[...document.querySelectorAll('.scroll')].filter(
  e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 40))"""


def test_tables_and_plots_fit_1200_pixels_and_scroll_alone_on_a_narrow_page(page):
    page.evaluate(FOLD, True)
    assert page.evaluate("document.documentElement.scrollWidth") == 1200
    assert page.evaluate(WIDER) == []
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    wide = page.evaluate(WIDER)
    assert any(text.startswith("Throughput") for text in wide)
    listed = ("Difference from dense", "4 test rows", "Verification", "Gate")
    assert not [text for text in wide if text.startswith(listed)]


def test_what_a_narrow_page_hides_at_its_side_has_a_sign_above_it(page):
    """And no row is higher than what stands in its first two cells needs, but by two lines."""
    page.evaluate(FOLD, True)
    assert page.locator(".sideways").all()
    assert not any(sign.is_visible() for sign in page.locator(".sideways").all())
    page.set_viewport_size({"width": 400, "height": 800})
    unsigned = page.evaluate(
        """[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1
        && !(e.previousElementSibling || e).matches('.sideways')).map(e => e.ariaLabel || e.id)"""
    )
    assert unsigned == []
    assert all(sign.is_visible() for sign in page.locator(".sideways").all())
    assert (
        page.evaluate(
            """[...document.querySelectorAll('table:not(.listed, .pairs) tbody tr')].map(row =>
        row.clientHeight - Math.max(...[...row.cells].slice(0, 2).map(cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return range.getBoundingClientRect().height;
        }))).filter(spare => spare > 60)"""
        )
        == []
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_have_the_paper_and_the_ink_of_the_page(page, scheme):
    """The mean of a plot is near the paper's luminance, and its texts are far from it."""
    page.emulate_media(media="screen", color_scheme=scheme)
    paper = 0.008 if scheme == "dark" else 1.0
    for number, plot in enumerate(page.locator("figure img").all()):
        pixels = mpimg.imread(io.BytesIO(plot.screenshot()))[..., :3]
        gray = pixels.mean(axis=2)
        linear = np.where(gray <= 0.04045, gray / 12.92, ((gray + 0.055) / 1.055) ** 2.4)
        assert np.median(linear) == pytest.approx(paper, abs=0.02), number
        low, high = sorted((np.median(linear), linear.min() if scheme == "light" else linear.max()))
        assert (high + 0.05) / (low + 0.05) > 7
    page.emulate_media(media="screen", color_scheme="light")


def test_print_has_everything_and_the_keyboard_unfolds_it(page):
    table = page.locator("#table-environment")
    assert not table.is_visible()
    page.emulate_media(media="print")
    assert table.bounding_box()["height"] > 50
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen")
    page.locator("#units summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-units").is_visible()


def test_a_screen_reader_finds_its_way(page):
    """By the accessibility tree: landmarks, headings in order, names of tables and drawings."""
    tree = page.locator("body").aria_snapshot()
    for landmark in ("- banner:", "- main:", "- contentinfo:", 'navigation "Sections"'):
        assert landmark in tree
    levels = [int(level) for level in re.findall(r"heading .*\[level=(\d)\]", tree)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert not re.search(r"^\s*- '?(table|region|img)(:|$)", tree, re.MULTILINE)  # none unnamed
