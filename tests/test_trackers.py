"""Trackers for real: event files and MLflow stores are read back and hold what run.sqlite holds."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import clientwise as cw
import processes
from clientwise.experiment.trackers import Progress
from recorded import everything, rows

ROOT = Path(__file__).parents[1]
Curves = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def _leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the MLflow tracker sets is gone after each test."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def stored(folder: Path, method: str, seed: int = 1) -> Curves:
    """The curves of a lane by run.sqlite, written down independently of the code under test."""
    rounds = rows(cw.Run(folder), "rounds", method, seed).set_index("round")
    numbers = rounds.select_dtypes("number").drop(columns="seed")
    numbers = numbers.rename(columns={"metric": cw.Run(folder).facts.metric})
    weights = rows(cw.Run(folder), "weights", method, seed).groupby("round")
    assert numbers["refused"].tolist() == weights["refusal"].count().tolist()
    return {name: [*column.dropna().items()] for name, column in numbers.items()}


def tensorboard(folder: Path) -> Curves:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def mlflow_client(uri: str) -> Any:
    # Not imported with this file: MLflow sends telemetry unless the fixture above has run first.
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def mlflow_runs(uri: str, name: str = "tiny") -> dict[tuple[str, str], Any]:
    client = mlflow_client(uri)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    by_lane = {(run.data.tags["method"], run.data.tags["seed"]): run for run in runs}
    assert len(by_lane) == len(runs)
    return by_lane


def mlflow_curves(uri: str, run: Any) -> Curves:
    client = mlflow_client(uri)
    histories = {
        name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics
    }
    return {
        name: [(point.step, point.value) for point in points] for name, points in histories.items()
    }


def wandb_runs(folder: Path) -> dict[str, tuple[Curves, set[int]]]:
    """By name: the curves in the offline files of Weights & Biases, and the exit codes."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: dict[str, tuple[Curves, set[int]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        name = ""
        while content := store.scan_data():
            record = Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                name = record.run.display_name
                found.setdefault(name, ({}, set()))
            if record.HasField("history"):
                values = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                for key in values.keys() - {"_step", "_timestamp", "_runtime"}:
                    found[name][0].setdefault(key, []).append((values["_step"], values[key]))
            if record.HasField("exit"):
                found[name][1].add(record.exit.exit_code)
        store.close()
    return found


def assert_same(found: Curves, expected: Curves, but_for: tuple[str, ...] = ()) -> None:
    assert set(found) == set(expected)
    for name in set(expected) - set(but_for):
        assert [step for step, _ in found[name]] == [step for step, _ in expected[name]], name
        assert [value for _, value in found[name]] == pytest.approx(
            [value for _, value in expected[name]], rel=1e-6
        )


def interrupt_after(rounds: int) -> Any:
    def on_round(_: cw.Run, progress: Progress) -> None:
        if progress.done == rounds:
            raise KeyboardInterrupt

    return on_round


def test_both_hold_what_the_database_holds(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {
        "seeds": [1, 2],
        "trackers": ["tensorboard", "mlflow"],
        "evaluation": {"clients_every": 2},
    }
    tiny |= {"federation": {}, "hostile": [{"clients": 1, "attack": "broken"}]}
    folder = cw.run(tiny, tmp_path / "a run").folder  # a space in the address of the file store
    uri = (folder / "mlruns").as_uri()
    runs = mlflow_runs(uri)
    assert set(runs) == {(method, seed) for method in ("FedAvg", "all of it") for seed in "12"}
    for (method, seed), run in runs.items():
        expected = stored(folder, method, int(seed))
        if (
            method == "FedAvg"
        ):  # the other one evaluates the clients in every round, to find its order
            assert [step for step, _ in expected["local_mean"]] == [
                2,
                3,
            ]  # when due, and at the end
        assert sum(value for _, value in expected["refused"]) == 3
        assert_same(tensorboard(folder / "tensorboard" / f"{method}-seed{seed}"), expected)
        assert_same(mlflow_curves(uri, run), expected)
        assert run.info.status == "FINISHED"
        assert run.info.run_name == f"{method}, seed {seed}"
    params = runs["all of it", "2"].data.params
    assert params["training.epochs"] == "1"
    assert params["method.criteria.1.name"] == "label_diversity"
    assert params["seed"] == "2"
    assert not [key for key in params if key.startswith(("trackers", "methods", "data_dir"))]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of W&B's own imports
def test_weights_and_biases_offline_and_resumed(tiny: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    tiny |= {"rounds": 4, "trackers": ["wandb"], "checkpoint_seconds": 0.0}
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        cw.run(tiny, folder, on_round=interrupt_after(2))
    assert {code for _, codes in wandb_runs(folder).values() for code in codes} == {1}
    cw.run(tiny, folder, resume=True)
    found = wandb_runs(folder)
    assert set(found) == {"FedAvg, seed 1", "all of it, seed 1"}
    for method in ("FedAvg", "all of it"):
        curves, codes = found[f"{method}, seed 1"]
        assert_same(curves, stored(folder, method))
        assert codes >= {0}
    ids = json.loads((folder / "wandb.json").read_text())
    assert set(ids) == {"FedAvg-seed1", "all of it-seed1"}


def test_other_places(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["methods"] = [{"name": "a/b", "like": "FedAvg"}]
    uri = (tmp_path / "elsewhere").as_uri()
    tiny["trackers"] = ["tensorboard", {"name": "mlflow", "tracking_uri": uri}]
    folder = cw.run(tiny, tmp_path / "run").folder
    assert not (folder / "mlruns").exists()
    assert_same(tensorboard(folder / "tensorboard" / "a%2Fb-seed1"), stored(folder, "a/b"))
    assert_same(mlflow_curves(uri, mlflow_runs(uri)["a/b", "1"]), stored(folder, "a/b"))


CRASH = """
import os, sys
import clientwise as cw
cw.run(sys.argv[1], sys.argv[2], on_round=lambda _, progress: progress.done == 3 and os._exit(77))
"""


@pytest.mark.parametrize(("checkpoint_seconds", "run_again"), [(1000.0, [1, 2, 3]), (0.0, [])])
def test_killed_after_a_round_no_step_is_missing_or_twice(
    tiny: dict[str, Any], tmp_path: Path, checkpoint_seconds: float, run_again: list[int]
) -> None:
    """Three rounds are logged, of which none is in a checkpoint, or all are: the others are run again."""
    tiny |= {"rounds": 5, "checkpoint_seconds": checkpoint_seconds}
    tiny["trackers"] = ["tensorboard", "mlflow"]
    tiny["methods"] = [{"name": "FedAvg"}]
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(tiny))
    assert processes.run(CRASH, config, folder).returncode == 77
    uri = (folder / "mlruns").as_uri()
    assert len(mlflow_curves(uri, mlflow_runs(uri)["FedAvg", "1"])["loss"]) == 3
    time.sleep(1.1)  # TensorBoard orders files by the second in which they began
    seen: list[int] = []
    cw.run(
        config,
        folder,
        resume=True,
        on_round=lambda _, progress: seen.append(progress.record.round_num),
    )
    assert seen == [*run_again, 4, 5]
    expected = stored(folder, "FedAvg")
    assert_same(tensorboard(folder / "tensorboard" / "FedAvg-seed1"), expected)
    assert_same(
        mlflow_curves(uri, mlflow_runs(uri)["FedAvg", "1"]),
        expected,
        but_for=("seconds", "machine"),
    )


def test_trackers_do_not_matter_for_resume_or_results(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = cw.run(tiny, "runs/plain")
    with pytest.raises(KeyboardInterrupt):
        cw.run({**tiny, "trackers": ["tensorboard"]}, "runs/tracked", on_round=interrupt_after(4))
    cw.run(tiny, "runs/tracked", resume=True)  # on in the first part, off in the second
    assert everything(cw.Run("runs/tracked")) == everything(plain)


def test_nothing_is_written_or_imported_by_default(tiny: dict[str, Any], tmp_path: Path) -> None:
    assert cw.load(tiny).trackers == []
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tiny))
    program = (
        "import sys, clientwise as cw; cw.run(sys.argv[1], sys.argv[2]); "
        "assert not {'mlflow', 'tensorboard'} & set(sys.modules), 'imported'"
    )
    processes.run(program, config, tmp_path / "run").check_returncode()
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert names == {"checkpoints", "config.toml", "run.sqlite", "versions.json"}


def test_mlflow_sends_no_telemetry(tiny: dict[str, Any], tmp_path: Path) -> None:
    """In a process that does not look like a test, since MLflow is quiet in those."""
    tiny |= {"rounds": 1, "trackers": ["mlflow"]}
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tiny))
    looks_like_a_test = re.compile("PYTEST|MLFLOW|^CI$|GITHUB|GITLAB|JENKINS|TRAVIS|BUILD|^TF_")
    environment = {
        key: value for key, value in os.environ.items() if not looks_like_a_test.search(key)
    }
    environment |= {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "MLFLOW_TRACKING_URI": "http://x.invalid",
    }
    program = (
        "import socket, sys, clientwise as cw\n"
        "def refuse(*_): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "cw.run(sys.argv[1], sys.argv[2])\n"
        "from mlflow.telemetry import get_telemetry_client\n"
        "assert get_telemetry_client() is None\n"
    )
    done = processes.run(program, config, tmp_path / "run", env=environment, seconds=120)
    assert done.returncode == 0, done.stderr
    assert "switched off" not in done.stderr
    assert not list(tmp_path.rglob("telemetry.json"))
    assert len(mlflow_runs((tmp_path / "run" / "mlruns").as_uri())) == 2


def test_on_round_gets_the_numbers_that_trackers_get(tiny: dict[str, Any], tmp_path: Path) -> None:
    seen: dict[str, Curves] = {}

    def on_round(_: cw.Run, progress: Progress) -> None:
        curves = seen.setdefault(progress.method, {})
        for name, value in progress.values.items():
            curves.setdefault(name, []).append((progress.record.round_num, value))

    folder = cw.run(tiny, tmp_path / "run", on_round=on_round).folder
    for method, curves in seen.items():
        assert_same(curves, stored(folder, method))


@pytest.mark.parametrize("where", ["__init__", "add_scalar", "close"])
def test_a_tracker_that_raises_is_switched_off_and_the_run_goes_on(
    tiny: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the server\nis away")

    monkeypatch.setattr(SummaryWriter, where, fail)
    folder = cw.run({**tiny, "trackers": ["tensorboard", "mlflow"]}, tmp_path / "run").folder
    assert cw.Run(folder).finished
    assert [record.getMessage() for record in caplog.records if record.name == "clientwise"] == [
        "warning: tracker tensorboard is switched off for the rest of this run: ConnectionError: the server is away"
    ]
    uri = (folder / "mlruns").as_uri()
    for (method, _), run in mlflow_runs(uri).items():  # the other one is not touched by it
        assert_same(mlflow_curves(uri, run), stored(folder, method))


def test_what_is_wrong_before_the_run_begins_is_said_then(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        cw.ClientwiseError, match=r"trackers\[0\]: unknown tracker 'tensorbord'; did you mean"
    ):
        cw.load({**tiny, "trackers": ["tensorbord"]})
    with pytest.raises(
        cw.ClientwiseError, match=r"trackers\[0\].*tracking: unknown option; did you mean 'tra"
    ):
        cw.load({**tiny, "trackers": [{"name": "mlflow", "tracking": "x"}]})
    for name, module in (("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(cw.ClientwiseError, match=rf'pip install "clientwise\[{name}\]"'):
            cw.run({**tiny, "trackers": [name]}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_page_on_trackers_runs_as_printed(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8").partition("## Trackers")[2]
    (hook,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (first,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "first.toml").write_text(first + tomli_w.dumps(tiny))
    assert [part.name for part in cw.load(tmp_path / "first.toml").trackers] == [
        "tensorboard",
        "mlflow",
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_hook.py").write_text(hook)
    stopped = cw.run({**tiny, "plugins": ["my_hook"], "rounds": 100}, tmp_path / "stopped")
    assert 1 < stopped.lanes["rounds"].sum() < 200
    assert stopped.frame("rounds")["metric"].max() > 0.9
