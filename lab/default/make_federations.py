"""The table of docs/results/federations.md, from the matrix of lab/default/federations.toml.

    clientwise run lab/default/federations.toml --methods FedAvg --seeds 900 --set 'matrix.attacks={}' --out FOLDER
    python lab/default/make_federations.py FOLDER

It stands between `<!-- run federations -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from clientwise.data.summary import summarise
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "results" / "federations.md"
PLACE = re.compile(r"(<!-- run federations -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = (
    "federation",
    "table",
    "target",
    "clients",
    "features",
    "smallest, median, largest client",
    "server, report",
    "largest class",
    "FedAvg",
)


def main(folder: Path, page: Path = PAGE) -> None:
    """Write the table of this matrix into the page."""
    rows = [HEAD, [":--"] * 4 + ["--:"] * (len(HEAD) - 4)]
    rows += [row(folder, cell) for cell in look_at(folder).cells if not cell.share]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    page.write_text(
        PLACE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", page.read_text(encoding="utf-8")),
        encoding="utf-8",
    )


def row(folder: Path, cell: MatrixCell) -> list[str]:
    """What a federation is under its first seed, and what FedAvg reaches in the last round."""
    experiment = cell.experiment
    run = RunFolder(folder / cell.folder)
    last = run.frame("rounds").groupby("seed")["metric"].last()
    seed = experiment.seeds[0]
    data, _ = build_data(experiment, load_samples(experiment), seed)
    found = summarise(data)
    options = experiment.data.options
    sizes = found.train.sort().values
    above = options.get("above")
    return [
        cell.data,
        options["item"],
        options["target"] + ("" if above is None else f" > {above:g}"),
        f"{found.train.numel()} by {options.get('client') or 'class'}",
        str(data.samples.inputs.shape[1]),
        f"{sizes[0]}, {sizes.median()}, {sizes[-1]}",
        f"{found.weigh.sum()}, {found.report.sum()}",
        f"{found.report.max() / found.report.sum():.1%}",
        f"{last[seed]:.1%}",
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
