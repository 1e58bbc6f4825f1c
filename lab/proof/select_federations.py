"""The table of candidates in docs/results/proof.md, and which of them the rule keeps.

    clientwise run lab/proof/candidates.toml --out FOLDER
    python lab/proof/select_federations.py FOLDER

The rule: the oracle leads the better of both `ServerOnly` by at least 5 points, mean over the seeds, and the federation
has at least five clients. The table stands between `<!-- select_federations -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from make_proof import ORACLE, PAGE, TOUCHED, markdown

from clientwise.data.summary import summarise
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder

PLACE = re.compile(r"(<!-- select_federations -->\n).*?(<!-- end -->)", re.DOTALL)
LEAD = 5.0  # points
FEWEST_CLIENTS = 5  # of fewer, 20% are none or more than 20%
HEADS = (
    "federation",
    "clients",
    "server alone",
    "oracle",
    "lead",
    "seen before",
    "kept",
)


def main(folder: Path, page: Path = PAGE) -> None:
    """Write the table into the page."""
    lines = [line_of(folder, cell) for cell in look_at(folder).cells]
    table = markdown(HEADS, lines)
    kept = sum(line[-1] == "yes" for line in lines)
    new = sum(line[-1] == "yes" and not line[-2] for line in lines)
    said = f"{len(lines)} candidates, {kept} kept, {new} of them new."
    text = page.read_text(encoding="utf-8")
    page.write_text(
        PLACE.sub(lambda found: f"{found[1]}{table}\n\n{said}\n{found[2]}", text), encoding="utf-8"
    )


def line_of(folder: Path, cell: MatrixCell) -> list[str]:
    """What a candidate is under its first seed, and what the rule says."""
    run = RunFolder(folder / cell.folder)
    rounds = run.frame("rounds")
    means = 100 * rounds.groupby(["method", "seed"])["metric"].last().groupby("method").mean()
    alone = means.drop(ORACLE).max()
    lead = means[ORACLE] - alone
    experiment = cell.experiment
    data, _ = build_data(experiment, load_samples(experiment), experiment.seeds[0])
    clients = summarise(data).train.numel()
    return [
        cell.data,
        str(clients),
        f"{alone:.1f}",
        f"{means[ORACLE]:.1f}",
        f"{lead:+.1f}",
        "yes" if cell.data in TOUCHED else "",
        verdict(lead, clients),
    ]


def verdict(lead: float, clients: int) -> str:
    """Whether a candidate is kept, or why not."""
    if clients < FEWEST_CLIENTS:
        return f"fewer than {FEWEST_CLIENTS} clients"
    if lead < LEAD:
        return f"lead below {LEAD:g}"
    return "yes"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
