"""Make the pictures of the documentation from a real run, the packaged demo with five seeds; needs Chromium."""

from __future__ import annotations

import platform
from importlib.resources import files
from pathlib import Path

import make_screenshots
from rich.console import Console

import clientwise as cw
from clientwise.experiment.runner import new_folder
from clientwise.progress import show_progress
from clientwise.report.figures import draw
from clientwise.report.terminal import summary_table
from clientwise.report.views import result_charts


def main() -> None:
    """Run, draw, and print the table that the README quotes."""
    console = Console(width=120, highlight=False)
    experiment = cw.load(str(files("clientwise") / "demo.toml"), ["seeds=[1, 2, 3, 4, 5]"])
    with show_progress(console) as on_round:
        folder = cw.run(experiment, new_folder("pictures"), on_round=on_round)
    run = cw.Run(folder)
    draw(result_charts(run), Path(__file__).parent / "demo.png")
    make_screenshots.main(folder)
    console.print(summary_table(run))
    console.print(f"on {platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
