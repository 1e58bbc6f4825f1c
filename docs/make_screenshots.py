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


def main(folder: Path, out: Path = DOCS, scheme: str = "light") -> None:
    """The overview of one run."""
    shoot(folder, out, scheme, [("overview", 1360, 1000, "")])


def audit(folder: Path, out: Path = DOCS, scheme: str = "light") -> None:
    """The audit of the last round of a run's last method."""
    shoot(folder, out, scheme, [("audit", 1360, 1500, "Weight audit")])


def shoot(folder: Path, out: Path, scheme: str, pictures: list[tuple[str, int, int, str]]) -> None:
    """Photograph places of a run's page: name, width and height in pixels, and the heading of the place."""
    address = write_report([RunFolder(folder)], folder / "report").resolve().as_uri()
    with chromium() as browser:
        for name, width, height, place in pictures:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(address)
            if place:
                page.get_by_role("heading", name=place).evaluate("one => one.scrollIntoView()")
            if name == "audit":
                page.locator("details summary").last.click()
            page.wait_for_timeout(1500)  # charts are drawn when they come into sight
            shown = page.locator("details figure:has(svg)").last if name == "audit" else page
            shown.screenshot(path=out / f"page-{name}.png")
            context.close()


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
