"""`clientwise.nvflare.MethodAggregator`: NVFlare's models translated for `cw.Aggregator`, and real jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from recorded import rows

pytest.importorskip("nvflare", reason="needs clientwise[nvflare]")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.job_config.fed_job_config import FedJobConfig

import clientwise as cw
import processes
from clientwise.nvflare import MethodAggregator
from clientwise.record.run import RunFolder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nvflare_job"
SENT = {"kernel": numpy.ones((2, 2), "float32"), "bias": numpy.zeros(2, "float32")}
# NVFlare logs in three seconds after it started its processes, which a busy machine needs to begin.
PATIENT = """
import runpy
from nvflare.recipe import poc_env
poc_env.SERVICE_START_TIMEOUT = {seconds}
runpy.run_path("job.py", run_name="__main__")
"""


def in_job(aggregator: MethodAggregator, sent: Any = SENT) -> MethodAggregator:
    """The aggregator at the beginning of a round of a job."""
    aggregator.fl_ctx = FLContext()
    model = make_model_learnable(sent, {})
    aggregator.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, model, private=True, sticky=True)
    aggregator.reset_stats()
    return aggregator


def sent_by(site: str, value: float, kind: str = "FULL", **more: Any) -> FLModel:
    params = {name: numpy.full_like(array, value) for name, array in SENT.items()}
    model = FLModel(params=params, params_type=kind, **more)
    model.meta["client_name"] = site
    return model


def test_models_differences_metrics_and_meta_data_are_translated(tmp_path: Path) -> None:
    aggregator = in_job(
        MethodAggregator("FedAvg", ["accuracy", "dataset_size"], folder=str(tmp_path / "run"))
    )
    full = sent_by("a", 3.0, metrics={"accuracy": 0.5, "loss": 1.0}, meta={"dataset_size": 10})
    change = sent_by("b", 1.0, "DIFF", metrics={"accuracy": 1.0, "loss": 3.0, "more": "text"})
    change.meta["dataset_size"] = 30
    broken = sent_by("c", float("nan"), metrics={"accuracy": 1.0}, meta={"dataset_size": 1})
    silent = sent_by("d", 1.0)
    for model in (full, change, broken, silent, sent_by("a", 9.0)):
        aggregator.accept_model(model)
    found = aggregator.aggregate_model()
    expected = cw.Aggregator("FedAvg", criteria=["accuracy", "dataset_size"]).aggregate(
        SENT,
        {"a": full.params, "b": {"kernel": numpy.full((2, 2), 2.0), "bias": numpy.ones(2)}},
        {"a": {"accuracy": 0.5, "dataset_size": 10}, "b": {"accuracy": 1.0, "dataset_size": 30}},
    )
    for name, array in expected.model.items():
        assert found.params[name] == pytest.approx(array, abs=1e-6)
    weights = expected.weights
    assert found.metrics == pytest.approx(
        {
            "accuracy": 0.5 * weights["a"] + weights["b"],
            "loss": weights["a"] + 3 * weights["b"],
        }
    )
    aggregator.handle_event(EventType.END_RUN, aggregator.fl_ctx)
    run = RunFolder(tmp_path / "run")
    assert run.finished
    assert run.frame("clients")["name"].tolist() == ["a", "b", "c", "d"]


def test_a_round_without_a_usable_update_keeps_the_model(tmp_path: Path) -> None:
    aggregator = in_job(MethodAggregator("FedAvg", folder=str(tmp_path / "run")))
    aggregator.accept_model(sent_by("a", float("inf"), meta={"dataset_size": 10}))
    found = aggregator.aggregate_model()
    assert found.metrics is None
    assert all((found.params[name] == array).all() for name, array in SENT.items())


def test_steps_are_those_that_nvflare_counts(tmp_path: Path) -> None:
    aggregator = in_job(MethodAggregator("Uniform", ["local_steps"], folder=str(tmp_path / "run")))
    for site, steps in {"a": 10, "b": 30}.items():
        meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: steps}
        aggregator.accept_model(sent_by(site, float(steps), meta=meta))
    assert aggregator.aggregate_model().params["bias"] == pytest.approx([25, 25])


def test_the_job_holds_the_arguments_as_plain_values(tmp_path: Path) -> None:
    table = {"name": "mine", "like": "Median", "bounds": {"cap": 0.5}}
    aggregator = MethodAggregator(table, clients=["site-1", "site-2"], seed=7)
    written = FedJobConfig("job", 1)._get_args(aggregator, str(tmp_path))
    assert written == {"method": table, "clients": ["site-1", "site-2"], "seed": 7}
    assert vars(MethodAggregator(**written))["method"] == table


def test_weights_by_site(tmp_path: Path) -> None:
    weights = {"a": 3.0, "b": 1.0, "gone": 5.0}
    aggregator = in_job(MethodAggregator("FedAvg", weights=weights, folder=str(tmp_path / "run")))
    for site, value in {"a": 1.0, "b": 5.0, "stranger": 9.0}.items():
        aggregator.accept_model(sent_by(site, value))
    assert aggregator.aggregate_model().params["bias"] == pytest.approx([2.0, 2.0])
    written = FedJobConfig("job", 1)._get_args(aggregator, str(tmp_path))
    assert written["weights"] == weights


class ByLoss(MethodAggregator):
    def server_side(self) -> dict[str, Any]:
        return {"weights": lambda site, metrics: 1 / metrics["loss"]}


def test_weights_by_a_function_of_the_sites_metrics(tmp_path: Path) -> None:
    aggregator = in_job(ByLoss("FedAvg", folder=str(tmp_path / "run")))
    for site, loss in {"a": 0.5, "b": 1.0}.items():
        aggregator.accept_model(sent_by(site, 3 * loss, metrics={"loss": loss}))
    assert aggregator.aggregate_model().params["bias"] == pytest.approx([2.0, 2.0])


def test_what_nvflare_does_not_tell_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not part of a running job"):
        MethodAggregator("FedAvg").reset_stats()
    with pytest.raises(RuntimeError, match="does not say which model it sends"):
        in_job(MethodAggregator("FedAvg", folder=str(tmp_path / "run")), {})
    with pytest.raises(ValueError, match="needs samples of the server"):
        in_job(MethodAggregator(folder=str(tmp_path / "run")))


@pytest.mark.parametrize(
    ("file", "block"),
    [("server.py", 0), ("client.py", 1)],
    ids=lambda one: str(one),
)
def test_the_guide_shows_the_example(file: str, block: int) -> None:
    guide = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    shown = guide.partition("\n## NVFlare\n")[2].split("```python\n")[block + 1].split("```")[0]
    body = shown.split("\n\n\n")[-1]  # without the import
    example = (EXAMPLE / file).read_text(encoding="utf-8")
    assert "".join(body.split()) in "".join(example.split())


def run_example(tmp_path: Path) -> RunFolder:
    """The record of the example's job in processes; test_commands_of_hosts.py has NVFlare's simulator."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path),
        "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    limit = 300 * processes.pace()
    program = PATIENT.format(seconds=20 * processes.pace())
    job = subprocess.Popen(
        [sys.executable, "-c", program, "--poc"],
        cwd=EXAMPLE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=limit)
    finally:  # a server and sites that were started, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    records = [line for line in said.splitlines() if line.startswith("record: ")]
    assert records, said[-5000:]
    return RunFolder(records[0].removeprefix("record: "))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_with_a_poisoned_site(tmp_path: Path) -> None:
    run = run_example(tmp_path)
    assert run.finished
    assert run.facts.rounds == 5
    found = rows(run, "weights", "Recommended", 1, 5)
    weights = dict(zip(found["name"], found["weight"], strict=True))
    assert sorted(weights) == ["site-1", "site-2", "site-3", "site-4"]
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["site-4"] < 0.05
