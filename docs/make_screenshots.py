"""Take the pictures of the live page: `python docs/make_screenshots.py RUN`, with Chromium on the PATH."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from clientwise.record.reading.folder import RunFolder
from clientwise.report.server import make_app

DOCS = Path(__file__).parent
MARGIN = 16  # around a section, in pixels
AROUND = """(section, margin) => {
    const from = section.firstElementChild.getBoundingClientRect();
    const to = section.lastElementChild.getBoundingClientRect();
    const [x, y] = [from.left - margin, from.top + scrollY - margin];
    return { x, y, width: from.width + 2 * margin, height: to.bottom - from.top + 2 * margin };
}"""
QUIET = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
)


def main(folder: Path, out: Path = DOCS, scheme: str = "light") -> None:
    """Overview, audit and phone, of one run."""
    run = RunFolder(folder)
    _, method, seed = next(lane for lane in reversed(run.lanes) if lane.seed == run.lanes[0].seed)
    last = run.last_round(method, seed)
    with served(folder) as address, chromium() as browser:
        for name, width, height, path in (
            ("overview", 1360, 1000, ""),
            ("audit", 1360, 900, f"#round/{quote(method, safe='')}/{seed}/{last}"),
            ("phone", 375, 812, "#s-curves"),
        ):
            context = browser.new_context(
                viewport={"width": width, "height": height},
                device_scale_factor=2 if name == "phone" else 1,
                color_scheme="dark" if scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(f"{address}/runs/{folder.resolve().name}{path}")
            page.wait_for_selector("dialog[open] tbody tr" if name == "audit" else "main .card")
            if (
                name == "phone"
            ):  # the sections were not there yet when the browser looked for the place
                page.locator("#s-curves").evaluate("section => section.scrollIntoView()")
            page.wait_for_timeout(1500)  # charts are drawn when they come into sight
            page.screenshot(path=out / f"page-{name}.png")
            context.close()


def board(folder: Path, out: Path = DOCS) -> None:
    """What a board reads of a run."""
    with served(folder) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 900}, reduced_motion="reduce")
        page.goto(f"{address}/runs/{folder.resolve().name}")
        for section in ("gains", "contributions"):
            shown = page.locator(f"#s-{section}")
            shown.locator("tbody tr").first.wait_for()
            box = shown.evaluate(AROUND, MARGIN)
            page.screenshot(path=out / f"board-{section}.png", clip=box, full_page=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that loads nothing from elsewhere."""
    flags = (*QUIET, "disable-component-update", "disable-sync", "hide-scrollbars")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[f"--{flag}" for flag in flags]
        )
        yield browser
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The live page of a run folder, on a free port."""
    server = uvicorn.Server(
        uvicorn.Config(make_app([folder]), port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
