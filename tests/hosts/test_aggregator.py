"""`cw.Aggregator`: a method for the rounds of any framework."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.core.method import Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import Task
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError, RunError
from clientwise.hosts.methods import build, settings_of
from clientwise.record.run import RunFolder
from recorded import rows
from reported import items_of

ROOT = Path(__file__).parents[2]
CLIENTS = 6
SENT = {"kernel": numpy.zeros((2, 2), "float32"), "bias": numpy.zeros(2, "float32")}
ROUNDS = 4


def model(value: float) -> dict[str, numpy.ndarray]:
    return {name: numpy.full_like(array, value) for name, array in SENT.items()}


def sizes(**by_client: float) -> dict[str, dict[str, float]]:
    return {client: {"dataset_size": size} for client, size in by_client.items()}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()


def local_engine() -> tuple[LocalEngine, dict[str, Any]]:
    """Clients of digits, the last of which has other labels; and what the server holds."""
    images, labels = digits()
    held = (images[:300], labels[:300])
    train = []
    for client in range(CLIENTS):
        mine = slice(300 + client, None, CLIENTS)
        lied = 9 - labels[mine] if client == CLIENTS - 1 else labels[mine]
        train.append((images[mine][: 60 + 20 * client], lied[: 60 + 20 * client]))
    data = FederatedData.from_clients(train, train, weigh=held, report=held, num_classes=10)
    options = {"model": network(), "weigh": held, "num_classes": 10, "learning_rate": 0.1}
    return LocalEngine(data, network(), seed=1), options


def named(vector: Tensor, engine: LocalEngine) -> dict[str, Tensor]:
    layers = engine.spec.layers
    return {one.name: vector[one.start : one.stop].reshape(one.shape) for one in layers}


@pytest.mark.parametrize("name", ["Recommended", "FedAvg", "Median", "FedYogi"])
def test_weights_and_models_are_those_of_the_embedded_engine(name: str) -> None:
    engine, options = local_engine()
    trains, _ = local_engine()
    method = build(settings_of(name), 0.1, has_samples=True)
    everyone = tuple(range(CLIENTS))
    plan = Plan(1, CLIENTS, evaluate_clients_every=0, asks=everyone)
    state = first_state(engine.initial_model, method, engine)
    aggregator = cw.Aggregator(name, **options)
    sent: Any = named(engine.initial_model, engine)
    for round_num in range(1, ROUNDS + 1):
        task = Task(round_num, method.training, engine.problem.loss, method.client_criteria)
        vector = torch.cat([sent[one.name].flatten() for one in engine.spec.layers])
        updates: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for chunk in trains.train(everyone, vector, task):
            for row, client in enumerate(chunk.client_ids):
                updates[f"site {client}"] = named(chunk.models[row], engine)
                values[f"site {client}"] = {
                    label: float(column[row]) for label, column in chunk.measurements.items()
                }
        done = aggregator.aggregate(sent, updates, values)
        state, record = run_round(state, method, plan, engine)
        weights = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
        assert done.weights == pytest.approx(
            {f"site {client}": weight for client, weight in weights.items()}, abs=1e-6
        )
        sent = done.model
    final = torch.cat([sent[one.name].flatten() for one in engine.spec.layers])
    assert torch.allclose(final, state.model, rtol=1e-4, atol=1e-5)
    if name == "Recommended":
        liar = done.steps[f"site {CLIENTS - 1}"]
        assert liar.weight < 0.1 * liar.prior
        assert liar.z is not None


def test_the_record_is_a_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with cw.Aggregator("FedAvg", folder=folder) as aggregator:
        sent: Any = SENT
        for _ in range(3):
            updates = {"north": model(1.0), "south": model(3.0), "east": model(float("nan"))}
            values = sizes(north=30, south=10, east=5)
            sent = aggregator.aggregate(sent, updates, values).model
    run = RunFolder(folder)
    assert run.finished
    assert run.facts.rounds == 3
    clients = run.frame("clients")
    assert clients["name"].tolist() == ["north", "south", "east"]
    assert clients["num_train"].tolist() == [30, 10, 0]
    assert RunFolder(run.folder).about("FedAvg").criteria == ("dataset_size",)
    shown = CliRunner().invoke(app, ["show", str(folder), "--round", "2"]).output
    assert "0 north" in shown
    assert "75.0%" in shown
    assert "its update was refused (model has NaN or Inf)" in " ".join(shown.split())
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    assert "honest" not in str(items_of(run)).lower()
    assert "honest" not in CliRunner().invoke(app, ["show", str(folder)]).output.lower()
    with pytest.raises(RunError, match="there is a run already"):
        cw.Aggregator("FedAvg", folder=folder)  # before clients train for it
    resumed = CliRunner().invoke(app, ["run", str(folder), "--resume"])
    assert "recorded by cw.Aggregator or a strategy, and cannot be resumed" in str(
        resumed.exception
    )
    with pytest.raises(RuntimeError, match="the aggregator is closed: make another one"):
        aggregator.begin(SENT)


def test_a_run_without_a_metric_says_so(tmp_path: Path) -> None:
    with cw.Aggregator("FedAvg", folder=tmp_path / "mine") as aggregator:
        aggregator.aggregate(SENT, {"a": model(1.0), "b": model(2.0)}, sizes(a=1, b=2))
        aggregator.aggregate(SENT, {"a": model(float("nan"))}, sizes(a=1))
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "mine")]).output
    assert "No metric was measured: the server has no samples." in shown
    assert "1 of 3 updates were refused: model has NaN or Inf." in shown
    assert "metric" not in items_of(RunFolder(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rule": "medain"}, r"^method: rule: .*medain.*$"),
        ({"ruel": "median"}, r"^method: ruel: unknown option; did you mean 'rule'\?$"),
    ],
)
def test_a_table_with_a_mistake_is_refused_in_one_line(table: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cw.Aggregator({"name": "mine", "like": "FedAvg", **table})


def test_a_model_of_another_form_is_named() -> None:
    aggregator = cw.Aggregator("FedAvg")
    with pytest.raises(
        ValueError, match="the global model does not hold arrays by name: pass a dict"
    ):
        aggregator.begin([numpy.zeros(2)])  # type: ignore[arg-type]
    updates = {"a": {"kernel": SENT["kernel"]}, "b": {**SENT, "more": numpy.zeros(1)}}
    done = aggregator.aggregate(SENT, updates, sizes(a=1, b=1))
    assert done.refusals == {
        "a": "model of another shape: bias is missing",
        "b": "model of another shape: it has arrays that the global model has not",
    }
    with pytest.raises(ValueError, match=r"not that of the first round: .* bias is missing"):
        aggregator.begin(updates["a"])


@pytest.mark.parametrize("has_report", [False, True])
def test_the_record_says_what_its_metric_was_measured_on(tmp_path: Path, has_report: bool) -> None:
    _, options = local_engine()
    if has_report:
        options["report"] = tuple(part[300:] for part in digits())
    sent = network().state_dict()
    with cw.Aggregator("FedAvg", folder=tmp_path / "mine", **options) as aggregator:
        aggregator.aggregate(sent, {"a": sent}, sizes(a=1))
    run = RunFolder(tmp_path / "mine")
    assert run.facts.reported_on.startswith("held-out" if has_report else "the server's samples")
    images, labels = options["report" if has_report else "weigh"]
    right = network()(images).argmax(1) == labels
    assert run.frame("rounds")["metric"].item() == pytest.approx(float(right.double().mean()))


def test_the_result_has_the_form_of_the_global_model() -> None:
    sent = {
        "weight": torch.zeros(3, dtype=torch.bfloat16),
        "steps": torch.tensor(7),
        "bias": numpy.zeros(2),
    }
    update = {"weight": torch.ones(3), "steps": torch.tensor(9), "bias": [2, 2]}
    done = cw.Aggregator("FedAvg").aggregate(sent, {"a": update}, sizes(a=1))
    assert done.refusals == {}
    assert done.model["weight"].dtype == torch.bfloat16
    assert done.model["weight"].tolist() == [1, 1, 1]
    assert done.model["steps"].item() == 7  # a counter is no part of the model
    assert done.model["bias"].dtype == numpy.float64
    assert done.model["bias"].tolist() == [2, 2]


def test_a_module_that_is_trained_in_place_does_not_change_the_global_model() -> None:
    """The tensors of its `state_dict()` are those that clients train."""
    module = nn.Linear(2, 1)
    step = {"name": "momentum", "momentum": 0.5}
    aggregator = cw.Aggregator({"name": "Own", "like": "FedAvg", "server_step": step})
    moved = []
    for _ in range(2):
        before = module.bias.item()
        aggregator.begin(module.state_dict())
        with torch.no_grad():
            module.bias += 1.0
        aggregator.accept("north", module.state_dict(), {"dataset_size": 1})
        module.load_state_dict(aggregator.finish().model)
        moved.append(module.bias.item() - before)
    assert moved == pytest.approx([1.0, 1.5])


def test_a_value_is_checked_where_it_is_used_and_ignored_elsewhere() -> None:
    values = sizes(a=1, b=1)
    values["a"]["training_loss"] = float("nan")
    values["b"]["training_loss"] = 0.5
    updates = {"a": model(1.0), "b": model(2.0)}
    assert cw.Aggregator("FedAvg").aggregate(SENT, updates, values).weights == {"a": 0.5, "b": 0.5}
    used = cw.Aggregator("FedAvg", criteria=["training_loss"]).aggregate(SENT, updates, values)
    assert used.weights == {"b": 1.0}
    assert used.refusals == {"a": "training_loss = nan is outside [0, 1]"}


def test_buffers_take_no_server_step() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    sent = module.state_dict()
    update = {name: one + 1 for name, one in sent.items()}
    aggregator = cw.Aggregator("FedYogi", model=module)
    done = aggregator.aggregate(sent, {"a": update}, sizes(a=1))
    assert torch.allclose(done.model["1.running_var"], update["1.running_var"])
    assert not torch.allclose(done.model["0.weight"], update["0.weight"])


def test_a_round_without_a_usable_update_keeps_the_model() -> None:
    aggregator = cw.Aggregator("FedAvg")
    done = aggregator.aggregate(model(5.0), {"a": {"kernel": 1}, "b": model(1e38)}, sizes(b=1))
    assert not done.is_new
    assert done.model["bias"].tolist() == [5, 5]
    assert done.refusals == {
        "a": "model of another shape: kernel is not of shape (2, 2)",
        "b": "model norm is not finite",
    }
    assert done.remarks[-1].startswith("no update was accepted")
    complex_numbers = {name: array * 1j for name, array in SENT.items()}
    done = aggregator.aggregate(SENT, {"a": model(1.0), "b": complex_numbers}, sizes(a=1, b=1))
    assert done.is_new
    assert done.refusals == {"b": "model of another type"}
    assert aggregator.round_num == 2


def test_own_criteria_and_what_the_server_measures() -> None:
    aggregator = cw.Aggregator(
        "FedAvg",
        criteria=["accuracy", "dataset_size"],
        score=cw.mean(),
        normalise="max",
        measured_here={"accuracy": lambda arrays: float(arrays["bias"][0])},
    )
    assert aggregator.asks_for == ("dataset_size",)
    values = sizes(a=10, b=20)
    values["a"]["accuracy"] = 1.0
    done = aggregator.aggregate(SENT, {"a": model(0.5), "b": model(1.0)}, values)
    expected = cw.weigh(
        {"accuracy": [0.5, 1.0], "dataset_size": [10, 20]}, score=cw.mean(), normalise="max"
    )
    assert list(done.weights.values()) == pytest.approx(expected.tolist())
    assert done.criteria["a"]["accuracy"] == 0.5  # not what it claims


def test_a_second_update_and_a_function_for_no_criterion(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    aggregator = cw.Aggregator("FedAvg", criteria=["trust", "dataset_size"], folder=folder)
    with pytest.raises(RuntimeError, match="call `begin` first"):
        aggregator.finish()
    aggregator.begin(SENT)
    for value in (1.0, 100.0):
        aggregator.accept("a", model(value), {"dataset_size": 1})
    done = aggregator.finish()
    aggregator.close()
    assert done.model["bias"].tolist() == [1, 1]
    assert done.refusals == {"a": "second update of the same client"}
    assert done.remarks == ()
    (notes,) = RunFolder(folder).frame("rounds")["notes"]
    assert notes == ["a is refused: second update of the same client"]
    assert done.criteria["a"]["trust"] > 0
    with pytest.raises(ValueError, match="measured_here: age is none of the criteria"):
        cw.Aggregator("FedAvg", measured_here={"age": lambda arrays: 1.0})


def test_the_servers_samples_may_measure_a_criterion() -> None:
    with pytest.raises(ValueError, match="FedAvg needs samples of the server"):
        cw.Aggregator("FedAvg", criteria=["server_performance"])
    _, options = local_engine()
    aggregator = cw.Aggregator("FedAvg", criteria=["server_performance"], **options)
    sent = network().state_dict()
    done = aggregator.aggregate(sent, {"a": sent, "b": {n: 0 * w for n, w in sent.items()}})
    assert set(done.weights) == {"a", "b"}


@pytest.mark.parametrize("clients", [None, ["a", "b", "c"]])
def test_an_own_score_that_is_negative_names_the_client(clients: list[str] | None) -> None:
    def centred(dataset_size: Tensor) -> Tensor:
        return dataset_size - 0.25

    table = {"name": "mine", "criteria": ["dataset_size"], "score": centred}
    aggregator = cw.Aggregator(table, clients=clients)
    updates = {name: model(1.0) for name in "abc"}
    with pytest.raises(
        ValueError, match=r"score centred returned -0.05 for client b: a score must be"
    ):
        aggregator.aggregate(SENT, updates, sizes(a=5, b=2, c=3))
    done = aggregator.aggregate(SENT, updates, sizes(a=5, b=5, c=5))
    assert done.weights == pytest.approx(dict.fromkeys("abc", 1 / 3))


@pytest.mark.parametrize("make", [list, tuple, numpy.array])
def test_clients_may_be_an_array(make: Any) -> None:
    aggregator = cw.Aggregator("FedAvg", clients=make(["a", "b"]))
    done = aggregator.aggregate(SENT, {name: model(1.0) for name in "abx"}, sizes(a=1, b=1, x=1))
    assert done.weights == pytest.approx({"a": 0.5, "b": 0.5})
    assert done.refusals == {"x": "unknown client"}


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("Recommended", "needs samples of the server"),
        ("FedProx", "training.proximal does not run inside another framework: add the term"),
        ("SCAFFOLD", "training.control_variates does not run"),
        ("FedBuff", "pace does not run"),
        ("Pooled", "control does not run"),
        ("KnowsHonest", "needs simulated clients"),
        ({"name": "mine", "adjust": "best_order"}, "adjust does not run"),
        ({"name": "mine", "score": {"name": "prioritized", "priority": ["age"]}}, "priority"),
        ("Recomended", "no method 'Recomended'"),
    ],
)
def test_what_a_host_cannot_give_is_refused_at_once(method: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cw.Aggregator(method)


def test_samples_need_a_network() -> None:
    with pytest.raises(ValueError, match="need `model`"):
        cw.Aggregator("FedAvg", weigh=digits())


def test_the_guide_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    guide = guide.partition("\n## Flower\n")[0]
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*\)  # (.*)$", guide, re.MULTILINE)
    assert printed == promised
    assert names["done"].refusals["east"] == "no answer in time"
    assert RunFolder("runs/my-federation").finished


def test_the_example_runs_and_weighs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "aggregator.py"))
    example["main"](str(tmp_path / "run"))
    assert "'west': 0.0" in capsys.readouterr().out.splitlines()[4]
    weights = rows(RunFolder(tmp_path / "run"), "weights", "Recommended", 1, 5)
    assert weights.set_index("name").loc["west", "weight"] < 0.05


def test_a_claim_about_data_stays_near_the_first_one() -> None:
    aggregator = cw.Aggregator("FedAvg")
    updates = {"a": model(1.0), "b": model(2.0)}
    aggregator.aggregate(SENT, updates, sizes(a=100, b=float("nan")))
    done = aggregator.aggregate(SENT, updates, sizes(a=151, b=50))
    assert done.weights == {"b": 1.0}  # an update that was refused claimed nothing
    assert done.refusals == {"a": "dataset_size = 151, at first 100: 66.6667 to 150 is allowed"}
