"""The page in a real browser: tables, audits, the keyboard, a phone, paper, and hostile names."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE_NAME, write_run

import clientwise as cw
import processes
from clientwise.record.run import RunFolder
from clientwise.report.document import (
    Cell,
    Document,
    Section,
    table,
)
from clientwise.report.output.export import audits, write_report
from clientwise.report.output.html import write_html
from clientwise.report.views import overview

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=WebUIOmniboxPopup",  # a second page for every window, and half of its time
]
FIRST_TABLE = "main .table >> nth=0"
PATIENCE = 60_000  # milliseconds: the machines that run this are shared


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


class Visitor:
    """A page of its own context, used again: a new one takes four times as long as what it then shows."""

    def __init__(self, browser: Any, options: dict[str, Any]) -> None:
        self.context = browser.new_context(reduced_motion="reduce", **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.complaints = []
        complain = self.page.complaints.append
        self.page.on("console", lambda message: complain(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: complain(str(error)))
        self.page.on(
            "dialog",
            lambda dialog: (complain(f"script ran: {dialog.message}"), dialog.dismiss()),
        )

    def visit(self, address: str, width: int, height: int) -> Any:
        """Open an address as somebody who was never there. The page keeps no data but cookies."""
        self.leave()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.goto(address)
        return self.page

    def leave(self) -> None:
        self.page.goto("about:blank")
        self.context.clear_cookies()


@pytest.fixture(scope="module")
def visitors() -> dict[str, Visitor]:
    """By the options of their contexts."""
    return {}


@pytest.fixture
def open_page(browser: Any, visitors: dict[str, Visitor]) -> Iterator[Any]:
    """Opens addresses, one at a time, and, at the end, sees that no page had anything to complain about."""

    def open_page(address: str, width: int = 1280, height: int = 900, **options: Any) -> Any:
        if str(options) not in visitors:
            visitors[str(options)] = Visitor(browser, options)
        return visitors[str(options)].visit(address, width, height)

    yield open_page
    for visitor in visitors.values():
        visitor.leave()
    complaints = [line for visitor in visitors.values() for line in visitor.page.complaints]
    for visitor in visitors.values():
        visitor.page.complaints.clear()
    assert complaints == []


@pytest.fixture(scope="module")
def report(shown: cw.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report without figures, which take long to draw."""
    folder = tmp_path_factory.mktemp("report")
    return write_report([shown], folder).parent


@pytest.fixture(scope="module")
def address(report: Path) -> str:
    return (report / "report.html").as_uri()


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"{table} >> tbody tr > :nth-child({number})").all_inner_texts()


def focused(page: Any, what: str = "textContent") -> str:
    return page.evaluate(f"document.activeElement.{what}")


def until(page: Any, condition: str) -> None:
    """Wait for something to be true; the page's policy forbids Playwright's own way."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def wait_for_charts(page: Any) -> None:
    """They are drawn when one comes to them."""
    page.locator("main .plot").first.scroll_into_view_if_needed()
    page.wait_for_selector("main .plot .main-svg")


def place_of(page: Any, point: int) -> list[float]:
    """Where on the screen a point of the first chart's first line is."""
    page.evaluate("document.querySelector('main .plot').scrollIntoView({block: 'center'})")
    return page.evaluate(
        f"""() => {{
            const plot = document.querySelector('main .plot'), box = plot.getBoundingClientRect();
            const {{x, y}} = plot.data.find(trace => trace.meta.open), {{xaxis, yaxis}} = plot._fullLayout;
            return [box.x + xaxis._offset + xaxis.d2p(x[{point}]), box.y + yaxis._offset + yaxis.d2p(y[{point}])];
        }}"""
    )


def test_tables_sort_by_mouse_and_by_keyboard(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.wait_for_selector(FIRST_TABLE)
    given = column(page, FIRST_TABLE, 1)
    page.locator(FIRST_TABLE).get_by_role("button", name="method").click()
    assert column(page, FIRST_TABLE, 1) == sorted(given, key=str.lower)
    button = page.locator(FIRST_TABLE).get_by_role("button", name="accuracy")
    button.focus()
    page.keyboard.press("Enter")
    head = page.locator(f"{FIRST_TABLE} >> thead th >> nth=1")
    assert head.get_attribute("aria-sort") == "descending"
    shares = [float(text.split("%")[0]) for text in column(page, FIRST_TABLE, 2)]
    assert shares == sorted(shares, reverse=True)
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.split("%")[0]) for text in column(page, FIRST_TABLE, 2)] == sorted(shares)
    page.keyboard.press("Enter")  # and back to how it came
    assert column(page, FIRST_TABLE, 1) == given
    assert focused(page) == "accuracy ± deviation"


def test_nothing_sorts_last_either_way(open_page: Any, tmp_path: Path) -> None:
    rows = [["a", 9], ["b", None], ["c", 10], ["d", Cell(None, "none")], ["e", Cell(-1, "x")]]
    section = Section("s", "s", "", [table("t", "t", ["name", "value"], rows, "")])
    document = Document("t", [], [section])
    page = open_page(write_html(document, {}, tmp_path / "report.html").as_uri())
    button = page.get_by_role("button", name="value")
    button.click()
    assert column(page, FIRST_TABLE, 1) == ["c", "a", "e", "b", "d"]
    button.click()
    assert column(page, FIRST_TABLE, 1) == ["e", "a", "c", "b", "d"]


def test_an_audit_opens_and_closes_by_keyboard_alone(open_page: Any, address: str) -> None:
    page = open_page(address)
    link = page.locator("main .table a[href^='#client/']").first
    link.wait_for()
    href = link.get_attribute("href")
    for _ in range(200):
        page.keyboard.press("Tab")
        if focused(page, "hash") == href:
            break
    assert (
        page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    )  # one sees where one is
    scrolled = page.evaluate("scrollY")
    page.keyboard.press("Enter")
    page.locator("dialog[open] tbody tr").first.wait_for()
    assert page.evaluate("location.hash") == href
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    page.locator("dialog a[href^='#round/']").last.focus()  # the page has the last round
    page.keyboard.press("Enter")  # from the client to a round of it
    until(page, "document.querySelector('#audit-title').textContent.includes('round')")
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")
    until(page, "location.hash === ''")
    assert focused(page, "hash") == href
    assert page.evaluate("scrollY") == scrolled


@pytest.mark.slow
def test_the_back_button_closes_an_audit_and_its_address_can_be_shared(
    open_page: Any, address: str
) -> None:
    page = open_page(address)
    page.locator("main .table a[href^='#client/']").first.click()
    page.locator("dialog[open] tbody tr").first.wait_for()
    shared = page.url
    page.go_back()
    page.locator("dialog").wait_for(state="hidden")
    page.go_forward()
    page.locator("dialog[open] tbody tr").first.wait_for()
    other = open_page(shared)
    other.locator("dialog[open] tbody tr").first.wait_for()
    other.get_by_role("button", name="Close").click()
    until(other, "location.hash === ''")
    wrong = open_page(f"{address}#round/nobody/1/1")
    wrong.locator("dialog[open]").get_by_text("clientwise show --round").wait_for()


def test_a_click_on_a_point_opens_its_round(open_page: Any, address: str) -> None:
    page = open_page(address)
    wait_for_charts(page)
    place = place_of(page, 2)
    page.mouse.move(*place)
    page.wait_for_timeout(300)
    page.mouse.click(*place)
    page.locator("dialog[open]").get_by_role("heading", name="round 3").wait_for()


def test_every_chart_has_its_words_and_its_numbers(open_page: Any, address: str) -> None:
    page = open_page(address)
    wait_for_charts(page)
    figures = page.locator("main figure")
    assert figures.count() > 5
    for number in range(figures.count()):
        figure = figures.nth(number)
        caption = figure.locator(".plot").get_attribute("aria-labelledby")
        assert len(page.locator(f"#{caption}").inner_text()) > 20
        figure.locator("summary").press("Enter")
        figure.locator("details tbody tr").first.wait_for()


@pytest.mark.slow
def test_axes_and_colours_stay_within_what_shares_can_be(open_page: Any, address: str) -> None:
    page = open_page(address)
    wait_for_charts(page)
    figures = page.locator("main figure")
    for number in range(figures.count()):
        figures.nth(number).scroll_into_view_if_needed()
        figures.nth(number).locator(".main-svg").first.wait_for()
    plots = page.evaluate(
        """() => [...document.querySelectorAll('main .plot')].map(plot => ({
            ends: [plot.layout.xaxis, plot.layout.yaxis].flatMap(axis => (axis.tickformat ? axis.range : [])),
            colours: plot.data.filter(trace => trace.z).map(trace => [trace.zmin, trace.zmax]),
            isWeight: plot.data.some(trace => trace.z && trace.meta?.open === 'client'),
            ticks: ['.ytick text', '.xtick text', '.cbaxis text'].map(
                kind => [...plot.querySelectorAll(kind)].map(tick => tick.textContent)),
        }))"""
    )
    # A line at 0% and a marker at 100% are drawn whole.
    assert all(-0.01 <= end <= 1.01 for plot in plots for end in plot["ends"])
    assert sum(bool(plot["ends"]) for plot in plots) > 5
    assert all(len(set(ticks)) == len(ticks) for plot in plots for ticks in plot["ticks"])
    maps = [plot["colours"][0] for plot in plots if plot["isWeight"]]
    assert len(maps) == 3
    assert maps[0][0] == 0
    assert all(
        colours == maps[0] for colours in maps
    )  # the same weight has the same colour everywhere


@pytest.mark.slow
def test_a_line_one_points_at_says_its_value_and_shows_its_range(
    open_page: Any, address: str
) -> None:
    page = open_page(address)
    wait_for_charts(page)
    plot = page.locator("main .plot").first
    ranges = "[...document.querySelector('main .plot').querySelectorAll('[class*=tracerange]')]"
    visible = f"{ranges}.filter(range => getComputedStyle(range).opacity === '1').length"
    assert page.evaluate(f"{ranges}.length") == 3
    assert page.evaluate(visible) == 0  # three bands upon each other hide each other
    page.mouse.move(*place_of(page, 2))
    said = plot.locator(".hoverlayer .hovertext")
    said.wait_for()
    assert re.search(r"round 3: \d+\.\d%\d+\.\d% to \d+\.\d% over 3 seeds", said.text_content())
    until(page, f"{visible} === 1")
    boxes = [plot.locator(part).first.bounding_box() for part in (".modebar", ".legend")]
    assert (
        boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    )  # the toolbar does not lie over the names
    page.locator("main figure").first.get_by_label("Range over the seeds").check()
    until(page, f"{visible} === 3")


def test_another_seed_can_be_chosen(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.locator("#s-weights .picker select").select_option("2")
    page.get_by_role("heading", name="weight of every client, seed 2").first.wait_for()
    assert page.get_by_role("heading", name="weight of every client, seed 1").count() == 0
    assert page.locator("#s-classes .picker select").input_value() == "2"  # one choice for all
    page.locator("#s-weights .table a[href^='#client/']").first.click()
    page.locator("dialog[open]").get_by_role("heading", name="seed 2").wait_for()


def test_an_audit_shows_how_criteria_become_weights(open_page: Any, address: str) -> None:
    page = open_page(f"{address}#round/online/1/5")
    bars = page.locator("dialog .plot .trace.bars")
    bars.first.wait_for()
    names = page.locator("dialog .legendtext").all_text_contents()
    assert sorted(names) == ["criteria", "weight"]
    remarks = column(page, "dialog .table >> nth=0", 2)
    accepted = [remark for remark in remarks if "refused" not in remark]
    assert page.locator("dialog .plot .trace.bars .point").count() == len(names) * len(accepted)
    ends = page.evaluate("document.querySelector('dialog .plot').data.at(-1).x")
    assert sum(ends) == pytest.approx(1)


@pytest.mark.slow
def test_a_phone_needs_no_scrolling_sideways(open_page: Any, address: str) -> None:
    page = open_page(address, width=375, height=740, color_scheme="dark")
    page.wait_for_selector("main figure")
    height = page.evaluate("document.body.scrollHeight")
    for place in range(0, height, 600):
        page.evaluate(f"scrollTo(0, {place})")
        page.wait_for_timeout(60)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    wide = page.locator("main .scroll[tabindex='0']").first  # it scrolls by itself, and by keyboard
    assert page.locator("main .more-right").count() > 0  # it says that there is more
    wide.focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.activeElement.scrollLeft > 0")
    page.locator("main .table a[href^='#client/']").first.click()
    page.locator("dialog[open] tbody tr").first.wait_for()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 375


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_data_curve_and_verdict(
    open_page: Any, report: Path, width: int, height: int
) -> None:
    page = open_page(f"{report.as_uri()}/report.html", width, height)
    curve = page.locator("#curve")
    for shown in (page.locator("#data"), curve, page.locator("#lead p").first):
        box = shown.bounding_box()
        assert box["y"] + box["height"] < height
    assert re.fullmatch(
        r"Data \(digits\): 8 clients, [\d,]+ training samples, 10 classes; "
        r"held-out samples: \d+ to weigh by, \d+ to report on",
        page.locator("#data").inner_text(),
    )
    assert curve.locator("polyline").count() == 3
    key = curve.locator(".key").inner_text()
    assert "FedAvg" in key
    assert "1 other" in key
    curve.click()
    page.wait_for_function("document.querySelector('#s-curves').getBoundingClientRect().top < 200")


def test_the_skip_link_and_the_contents(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.wait_for_selector("main figure")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert focused(page, "id") == "content"
    page.locator("#contents").get_by_role("link", name="Cost").click()
    page.wait_for_selector("#contents [aria-current]:text('Cost')")


def test_a_hostile_name_is_only_a_name(open_page: Any, tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "runs" / "<b>run", ["FedAvg", HOSTILE_NAME]))
    report = write_html(overview([run]), audits([run]), tmp_path / "report.html")
    page = open_page(report.as_uri())
    wait_for_charts(page)
    page.get_by_text(HOSTILE_NAME).first.wait_for()
    legend = page.evaluate("document.querySelector('main .plot .legend').textContent")
    assert legend.count(HOSTILE_NAME) == 1
    for number in range(page.locator("main figure").count()):
        page.locator("main figure").nth(number).scroll_into_view_if_needed()
        page.locator("main figure summary").nth(number).click()
    page.locator("main .table a[href^='#client/%3Cimg']").first.click()
    page.locator("dialog[open] tbody tr").first.wait_for()
    assert page.locator("img").count() == 0
    page.wait_for_timeout(300)


def test_a_report_file_needs_no_network(open_page: Any, report: Path) -> None:
    file = (report / "report.html").as_uri()
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file)
    wait_for_charts(page)
    page.locator("main .table a[href^='#client/']").first.click()
    page.locator("dialog[open] tbody tr").first.wait_for()
    page.keyboard.press("Escape")
    until(page, "location.hash === ''")
    page.evaluate("location.hash = '#round/FedAvg/1/999'")
    page.locator("dialog[open]").get_by_text("clientwise show --round").wait_for()
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [file]


@pytest.mark.slow
def test_a_report_prints(open_page: Any, report: Path) -> None:
    page = open_page((report / "report.html").as_uri(), color_scheme="dark")
    wait_for_charts(page)
    paper = page.pdf(format="A4")
    assert paper.count(b"/Type /Page\n") > 3 or len(paper) > 100_000
    page.emulate_media(media="print")
    assert page.locator("#contents").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_a_report_prints_as_soon_as_it_is_loaded(report: Path, tmp_path: Path) -> None:
    """Without a delay for scripts, as a cron job would print it. A page "Loading …" has 20 kB."""
    assert CHROMIUM is not None
    paper = tmp_path / "report.pdf"
    subprocess.run(
        [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--print-to-pdf={paper}",
            (report / "report.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    assert paper.stat().st_size > 100_000


def test_an_audit_of_compared_runs_opens(open_page: Any, tmp_path: Path) -> None:
    runs = [RunFolder(write_run(tmp_path / name)) for name in ("one", "two")]
    page = open_page(write_report(runs, tmp_path / "report").as_uri())
    wait_for_charts(page)
    page.get_by_text("one: FedAvg").first.wait_for()
    page.locator("main figure summary").first.click()
    page.locator("main details a[href^='#round/']").last.click()
    page.locator("dialog[open] tbody tr").first.wait_for()


@pytest.mark.alone
def test_a_large_run_opens_at_once_and_stays_responsive(open_page: Any, tmp_path: Path) -> None:
    """1,000 rounds × 100 clients × 9 methods."""
    methods = [f"method {number}" for number in range(1, 10)]
    run = RunFolder(write_run(tmp_path / "large", methods, rounds=1000, clients=100))
    report = write_report([run], tmp_path / "report")
    slow_before = processes.slowness()
    began = time.perf_counter()
    page = open_page(report.as_uri())
    page.wait_for_selector("h1:text('large')")
    page.wait_for_selector("main .table tbody tr")
    tables = time.perf_counter() - began
    wait_for_charts(page)
    charts = time.perf_counter() - began
    print(f"tables after {tables:.2f} s, charts after {charts:.2f} s")
    # A shared machine may be slower a moment later.
    slack = 2 * max(slow_before, processes.slowness())
    assert tables < 2 * slack
    assert charts < 2 * slack
    longest = page.evaluate(
        """async () => {  // the longest time in which the page could not answer, while one scrolls through it
            let longest = 0, last = performance.now();
            for (let place = 0; place < document.body.scrollHeight; place += 500) {
                scrollTo(0, place);
                await new Promise(resolve => setTimeout(resolve, 16));  // a browser may stop drawing, not counting
                longest = Math.max(longest, performance.now() - last);
                last = performance.now();
            }
            return longest;
        }"""
    )
    print(f"longest pause {longest:.0f} ms")
    assert longest < 500 * slack
