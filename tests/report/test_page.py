"""The page in a real browser: tables, charts, the keyboard, a phone, paper, and hostile names."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from made import Made, around

import clientwise as cw
from clientwise.record.run import RunFolder
from clientwise.report.items import Table
from clientwise.report.page import write_page, write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("vl_convert", reason="needs clientwise[report]")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
]
HOSTILE = "<img src=x onerror=alert(1)>"
FIRST_TABLE = "main table >> nth=0"
PATIENCE = 60_000  # milliseconds: the machines that run this are shared


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens files, and, at the end, sees that no page had anything to complain about or asked the network."""
    opened = []
    complaints: list[str] = []

    def open_page(path: Path, width: int = 1280, height: int = 900, **options: Any) -> Any:
        page = browser.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        opened.append(page)
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "dialog",
            lambda dialog: (complaints.append(f"script ran: {dialog.message}"), dialog.dismiss()),
        )
        page.on(
            "request",
            lambda request: request.url == path.as_uri() or complaints.append(request.url),
        )
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in opened:
        page.close()
    assert [line for line in complaints if not line.startswith("data:")] == []


@pytest.fixture(scope="module")
def report(shown: cw.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([RunFolder(shown.folder)], tmp_path_factory.mktemp("report"))


def column(page: Any, number: int) -> list[str]:
    return page.locator(f"{FIRST_TABLE} >> tbody tr > :nth-child({number})").all_inner_texts()


def test_tables_sort_by_mouse_and_by_keyboard(open_page: Any, report: Path) -> None:
    page = open_page(report)
    given = column(page, 1)
    button = page.locator(FIRST_TABLE).get_by_role("button", name="accuracy")
    button.focus()
    head = page.locator(f"{FIRST_TABLE} >> thead th >> nth=1")
    found = []
    for key, way in (("Enter", "descending"), ("Space", "ascending"), ("Enter", None)):
        page.keyboard.press(key)
        assert head.get_attribute("aria-sort") == way
        found.append([float(text.split("%")[0]) for text in column(page, 2)])
    assert found[0] == sorted(found[0], reverse=True)
    assert found[1] == sorted(found[0])
    assert column(page, 1) == given, "and back to how it came"
    page.locator(FIRST_TABLE).get_by_role("button", name="method").click()
    assert column(page, 1) == sorted(given, key=str.lower)


def test_nothing_sorts_last_either_way(open_page: Any, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"name": list("abcd"), "value": [9.0, None, 10.0, -1.0]})
    head = {"title": "t", "lead": [], "state": "", "status": ""}
    page = open_page(write_page(head, {"s": [Table("t", "t", frame)]}, tmp_path / "report.html"))
    button = page.get_by_role("button", name="value")
    button.click()
    assert column(page, 1) == ["c", "a", "d", "b"]
    button.click()
    assert column(page, 1) == ["d", "a", "c", "b"]


def test_every_chart_is_drawn_and_has_its_words(open_page: Any, report: Path) -> None:
    page = open_page(report)
    plots = page.locator("main section > .items > figure .plot")
    assert plots.count() > 5
    for number in range(plots.count()):
        plots.nth(number).scroll_into_view_if_needed()
        plots.nth(number).locator("svg").wait_for()
        assert len(plots.nth(number).get_attribute("aria-label")) > 20
    colours = page.locator(".plot svg").first.evaluate("svg => svg.outerHTML")
    assert "#E69F00" in colours, "Okabe and Ito's"
    audit = page.locator("details").first
    audit.locator("summary").click()
    audit.locator("tbody tr").first.wait_for()


def test_words_and_tables_need_no_script(open_page: Any, report: Path) -> None:
    page = open_page(report, java_script_enabled=False)
    assert page.locator(".lead p").count() > 1
    assert page.locator(f"{FIRST_TABLE} >> tbody tr").count() == 3
    assert "Charts need JavaScript" in page.locator("body").inner_text()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_data_and_verdict_and_nothing_scrolls_sideways(
    open_page: Any, report: Path, width: int, height: int
) -> None:
    page = open_page(report, width, height, color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 23)"
    for shown in (page.locator(".data"), page.locator(".lead p").first):
        box = shown.bounding_box()
        assert box["y"] + box["height"] < height
    assert re.fullmatch(
        r"Data \(digits\): 8 clients, [\d,]+ training samples, 10 classes; "
        r"held-out samples: \d+ to weigh by, \d+ to report on",
        page.locator(".data").inner_text(),
    )
    for figure in page.locator("main section > .items > figure").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_skip_link_and_the_contents(open_page: Any, report: Path) -> None:
    page = open_page(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.locator(".contents").get_by_role("link", name="Config").click()
    page.wait_for_selector(".contents [aria-current]")


def test_a_hostile_name_is_only_a_name(open_page: Any, tmp_path: Path) -> None:
    named = {"id": HOSTILE, "config": {"note": HOSTILE, "data": HOSTILE}, "warnings": [HOSTILE]}
    run = Made({"FedAvg": around(0.6, 0, 1), HOSTILE: around(0.7, 0, 1)}, **named)
    for name in ("local", "clients", "weights"):
        run.frames[name]["name"] = HOSTILE + "</script><script>alert(2)</script>"
    page = open_page(write_report([run], tmp_path))
    page.get_by_text(HOSTILE).first.wait_for()
    page.locator("details").evaluate_all("all => all.forEach(one => (one.open = true))")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator("svg").wait_for()
        plot.hover()
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator(".plot svg").first.text_content()


def test_a_report_prints_whole_as_soon_as_it_is_loaded(
    open_page: Any, report: Path, tmp_path: Path
) -> None:
    """Without a delay for scripts, as a cron job would print it."""
    page = open_page(report, color_scheme="dark")
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    plots = page.locator("main section > .items > figure .plot")
    assert page.locator("main section > .items > figure .plot svg").count() == plots.count()
    page.emulate_media(media="print")
    assert page.locator(".contents").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert CHROMIUM is not None
    paper = tmp_path / "report.pdf"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, f"--print-to-pdf={paper}", report.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    assert paper.stat().st_size > 100_000
