"""Take the pictures of a report: `python docs/make_screenshots.py RUN`, with Chromium on the PATH."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from clientwise.record.run import RunFolder
from clientwise.report.page import write_report

DOCS = Path(__file__).parent
QUIET = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
)


def main(folder: Path, out: Path = DOCS) -> None:
    """Photograph the top of a run's page."""
    address = write_report([RunFolder(folder)], folder / "report").resolve().as_uri()
    with chromium() as browser:
        size = {"width": 1360, "height": 1000}
        page = browser.new_page(viewport=size, color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        page.wait_for_timeout(1500)  # charts are drawn when they come into sight
        page.screenshot(path=out / "page-overview.png")


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
