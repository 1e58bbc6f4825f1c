"""What a report shows of a kind of problem."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import clientwise as cw
from clientwise.report.document import Chart, Table
from clientwise.report.terminal import summary_table
from clientwise.report.views import overview


@pytest.fixture(scope="module")
def survival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    inputs = torch.randn(80, 3)
    times = torch.exp(-inputs[:, 0])
    blocks = list(zip(inputs.split(20), times.split(20), strict=True))
    data = cw.FederatedData.from_clients(blocks[:2], blocks[2:], report=blocks[3], survival=True)
    config = {"name": "survival", "rounds": 2, "model": "linear", "methods": ["FedAvg"]}
    return cw.run(config, tmp_path_factory.mktemp("runs") / "survival", data=data)


def texts(folder: Path) -> str:
    """All headings of a run's report and of its table in the terminal."""
    run = cw.Run(folder)
    words = [str(column.header) for column in summary_table(run).columns]
    for section in overview([run]).sections:
        for item in section.items:
            if isinstance(item, Table):
                words += [column.label for column in item.columns]
            if isinstance(item, Chart):
                words.append(item.title)
    return " ".join(words).replace("\n", " ")


def test_survival_has_no_macro_f1(survival: Path) -> None:
    found = texts(survival)
    assert "concordance" in found
    assert "macro F1" not in found


def test_classes_have_macro_f1(run_folder: Path) -> None:
    assert texts(run_folder).count("macro F1") == 3  # table, curve, terminal
