"""Make the pictures of the documentation from real runs; needs Chromium.

The runs are the packaged demo and, for the audit, the same federation with four hostile clients of two kinds.
"""

from __future__ import annotations

import platform
from importlib.resources import files
from pathlib import Path

import make_screenshots
from rich.console import Console

import clientwise as cw
from clientwise.experiment.running.resume import new_folder
from clientwise.record.run import RunFolder
from clientwise.report.audit import shares
from clientwise.report.charts import draw
from clientwise.report.explanation import Round
from clientwise.report.results import Results
from clientwise.report.sections import metric_chart, result_table
from clientwise.report.terminal import print_items

DOCS = Path(__file__).parent


def main() -> None:
    """Run, draw, and print the table that the README quotes."""
    console = Console(width=120, highlight=False)
    experiment = cw.load(str(files("clientwise") / "demo.toml"))
    run = cw.run(experiment, new_folder("pictures"), progress=True)
    recorded = RunFolder(run.folder)
    draw(shares(Round(recorded, "Recommended", 1, run.facts.rounds)), DOCS / "shares.png")
    results = Results([recorded])
    draw(metric_chart(results), DOCS / "demo.png")
    make_screenshots.main(run.folder)
    print_items(console, [result_table(results)])
    console.print(f"on {platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
