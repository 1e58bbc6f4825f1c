"""Tables for a paper: LaTeX takes them, and they fit into one and two columns."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import clientwise as cw
from clientwise.report.document import Table, table
from clientwise.report.output.latex import as_latex
from clientwise.report.views import overview

LONG = "a long remark with a path /a/very/long/path/to/some/file_of_somebody.csv in it " * 3

WIDE = table(
    "wide & long",
    "Everything at once",
    ["method", "seed", *(f"share of hostile clients [95% interval] {n}" for n in range(14))],
    [["MW > LD", seed, *[f"{seed}.{n} ± 0.1 [-1, +2]" for n in range(14)]] for seed in range(30)],
    "A note with κ, ±, 100%, a_b, x^2, ≥ and “quotes”. " * 20,
)
TEXTS = table(
    "texts",
    "Long texts",
    ["key", "value"],
    [[f"some.key.number_{row}", LONG[: 5 * row]] for row in range(90)],
    "",
)
NARROW = table(
    "narrow", "A narrow one", ["method", "gain"], [["FedAvg", 0.1], ["AdaFed³ †", 0.2]], ""
)
LETTERS = table(
    "letters",
    "A method with wide letters",
    ["method", "mean", "worst 10%", "best 10%", "standard deviation", "Jain's index"],
    [["Recommended", "91.5%", "84.4%", "97.6%", "4.7 points", "0.997"]],
    "",
)


@pytest.mark.parametrize("shown", [WIDE, TEXTS, NARROW], ids=lambda shown: shown.id)
def test_columns_share_the_width_of_the_line(shown: Table) -> None:
    text = as_latex(shown)
    panels = re.findall(r"\\begin\{tabularx\}\{\\linewidth\}\{(.*)\}\n", text)
    assert bool(panels) == (shown is not NARROW)  # which is as wide as LaTeX finds its texts
    for kinds in panels:
        parts = [float(part) for part in re.findall(r"\\hsize=([\d.]+)\\hsize", kinds)]
        assert kinds.count("X") == len(parts)
        assert sum(parts) == pytest.approx(len(parts), abs=0.01)


def test_every_number_is_in_the_panels() -> None:
    text = as_latex(WIDE)
    for row in range(30):
        assert len(re.findall(rf"^  MW \$\\succ\$ LD & {row} & ", text, re.MULTILINE)) >= 2
        for place in range(14):
            assert text.count(f"& {row}.{place} $\\pm$ 0.1 ") == 1
    assert text.count(r"\label{") == 1
    assert text.count(r"\caption{Everything at once}") == 1
    assert r"\caption{Everything at once (continued)}" in text
    assert text.count(r"\parbox") == 1


@pytest.mark.parametrize("layout", ["onecolumn", "twocolumn"])
def test_latex_sets_all_tables_without_overfull_lines(
    shown: cw.Run, tmp_path: Path, layout: str
) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-recommended)")
    items = [item for section in overview([shown]).sections for item in section.items]
    tables = [item for item in items if isinstance(item, Table)]
    assert len(tables) > 5
    body = "\n\\clearpage\n".join(map(as_latex, [*tables, WIDE, TEXTS, NARROW, LETTERS]))
    document = rf"""\documentclass[{layout}]{{article}}
\usepackage{{booktabs,tabularx}}
\begin{{document}}
{body}
\end{{document}}
"""
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    built = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert built.returncode == 0, built.stdout[-2000:]
    wrong = [line for line in built.stdout.splitlines() if re.search("Overfull|too large", line)]
    assert not wrong
