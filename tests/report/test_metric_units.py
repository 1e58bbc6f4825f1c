"""A metric that is no share: its values are numbers everywhere, with their own direction, and never percent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clientwise as cw
from clientwise.core.objective.problem import Regression
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.report.arena.report import arena
from clientwise.report.document import Document, Table, text_of
from clientwise.report.marks import HeatMap
from clientwise.report.output.latex import as_latex
from clientwise.report.output.plotly import traces_and_layout
from clientwise.report.progress import describe
from clientwise.report.terminal import run_text
from clientwise.report.views import audit_client, headline, overview
from clientwise.results import Run

METRIC = "error_mmHg"
PLUGIN = f'''
import clientwise as cw

@cw.METRICS.register("{METRIC}", cw.measure("numbers", is_error=True, is_share=False))
def error(counts):
    """Root mean squared error in mmHg."""
    return (counts[..., 2] / counts[..., 0].clamp(min=1)).sqrt()
'''


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pressure")
    (folder / "pressure_metric.py").write_text(PLUGIN)
    random = torch.Generator().manual_seed(1)
    ages = 20 + 60 * torch.rand(200, generator=random)
    noise = 8 * torch.randn(200, generator=random)
    lines = [
        f"{'ABCDE'[row % 5]},{age:.1f},{90 + age / 2 + error:.1f}"
        for row, (age, error) in enumerate(zip(ages.tolist(), noise.tolist(), strict=True))
    ]
    (folder / "rows.csv").write_text("\n".join(["site,age,mmHg", *lines]))
    return {
        "name": "pressure",
        "plugins": ["pressure_metric"],
        "plugin_dir": str(folder),
        "rounds": 8,
        "seeds": [1, 2, 3, 4, 5],
        "evaluation": {"metric": METRIC, "target": 30},
        "data": {
            "name": "table",
            "files": str(folder / "rows.csv"),
            "target": "mmHg",
            "client": "site",
            "kind": "regression",
        },
        "partition": "by_id",
        "model": "linear",
        "training": {"learning_rate": 0.05, "batch_size": 16},
        "methods": [
            "FedAvg",
            {"like": "FedAvg", "name": "slow", "training": {"learning_rate": 0.001}},
        ],
    }


@pytest.fixture(scope="module")
def run(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(cw.run(config, tmp_path_factory.mktemp("runs") / "pressure"))


def tables(document: Document) -> dict[str, Table]:
    items = [item for section in document.sections for item in section.items]
    return {item.id: item for item in items if isinstance(item, Table)}


def column(shown: Table, label: str) -> list[str]:
    (place,) = [index for index, one in enumerate(shown.columns) if one.label.startswith(label)]
    return [text_of(row[place]) for row in shown.rows]


def test_the_metric_of_a_user_is_measured_over_samples_and_clients() -> None:
    @cw.METRICS.register("own_rmse", cw.measure("numbers", is_error=True, is_share=False))
    def own_rmse(counts: Tensor) -> Tensor:
        """Root mean squared error."""
        return (counts[..., 2] / counts[..., 0].clamp(min=1)).sqrt()

    class Held:
        sizes = torch.tensor([3, 1, 0])
        owner = torch.tensor([0, 0, 0, 1])
        targets_on_cpu = torch.tensor([1.0, 2.0, 3.0, 4.0])

    problem = Regression(scored_by="own_rmse")
    outputs = torch.tensor([[2.0, 2.0, 5.0, 4.5]])
    losses, values, counts = problem.judge(outputs[..., None], Held.targets_on_cpu)
    found = problem.evaluation((losses.double(), values, counts), Held())
    assert found.values[0].tolist() == pytest.approx([(5 / 3) ** 0.5, 0.5, 0.0])
    assert (problem.is_share, problem.higher_is_better) == (False, False)
    with pytest.raises(ValueError, match="computed from counts, not from scores"):
        cw.measure("numbers", from_scores=True)


def test_a_run_shows_numbers_and_their_direction(run: Run) -> None:
    best, slow = run.summary()
    mean = sum(best.metric) / 5
    assert 5 < mean < 30 < sum(slow.metric) / 5
    against_constant, verdict, lead, *_ = headline_of(run)
    constant = f"{run.constant_metric:.4g}"
    assert against_constant.startswith(
        f"Worse than a constant prediction ({constant}): FedAvg ({mean:.4g}), slow"
    )
    assert verdict.startswith(
        f"FedAvg has the lowest {METRIC} ({mean:.4g} in round 8). The lead is "
    )
    assert re.fullmatch(r"FedAvg against slow \(second best\): [\d.]+ better \(95% conf.*", lead)
    assert "%" not in run_text(run).replace("95% confidence", "")


def headline_of(run: Run) -> list[str]:
    from clientwise.report.series import series_of

    return headline(series_of([run]))


def test_tables_and_charts_of_a_run_have_no_percent(run: Run) -> None:
    document = overview([run])
    found = tables(document)
    summary = found["summary"]
    for label in (METRIC, "against the baseline", "worst client"):
        assert not any("%" in text for text in column(summary, label)), label
    assert column(summary, "rounds to 30")[0].startswith("5/5: ")
    assert not any("%" in text for text in column(found["by-client"], "FedAvg"))
    assert found["target-30"].title == f"{METRIC} of at most 30"
    assert "percentage points" not in summary.note + found["by-client"].note
    assert summary.best() == {(0, 1)}  # the lowest, and significantly so
    assert r"\textbf{" in as_latex(summary)
    charts = {item.id: item for section in document.sections for item in section.items}
    for chart in ("metric", "reached-50"):
        layout = traces_and_layout(charts[chart].mark)[1]
        assert "tickformat" not in layout["yaxis"]
        assert "%" not in charts[chart].alt
    (own,) = [
        item
        for item in audit_client(run, "FedAvg", 1, 0).sections[0].items
        if item.id == "client-own"
    ]
    assert "%" not in own.alt


def test_progress_shows_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    steps: list[cw.Progress] = []
    cw.run(config | {"rounds": 1, "seeds": [1]}, tmp_path / "run", on_round=steps.append)
    assert re.fullmatch(r"FedAvg, seed 1: round 1/1  +[\d.]+", describe(steps[0]))


def test_a_matrix_shows_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    table = config | {"seeds": [1, 2], "rounds": 4, "evaluation": {"metric": METRIC}}
    table |= {"matrix": {"shares": [0.4], "attacks": {"flip": {"attack": "sign_flip"}}}}
    folder = run_matrix(load_matrix(table), tmp_path / "matrix")
    document = arena(folder)
    assert not any(
        re.search(r"\d%(?! conf)", line.replace("flip 40%", "")) for line in document.lead
    )
    found = tables(document)
    standings = found[f"standings-{METRIC}"]
    assert not any("%" in text for text in column(standings, f"mean {METRIC}"))
    assert text_of(standings.rows[0][0]) == "FedAvg"  # the lower errors
    assert not any("%" in text for text in column(found["pressure-values"], "clean"))
    (heat,) = [
        item.mark
        for section in document.sections
        for item in section.items
        if isinstance(getattr(item, "mark", None), HeatMap)
    ]
    assert (heat.percent, heat.lower_is_better) == (False, True)
    assert heat.lowest == min(min(row) for row in heat.values) > 1
    trace = traces_and_layout(heat)[0][0]
    assert trace["zmin"] == heat.lowest
    assert "%{text}%" not in trace["hovertemplate"]
