"""Runs of networks with LoRA adapters: what is sent, averaged, recorded, refused and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import LocalTraining, Task
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.checks import against_data
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment
from clientwise.models.modules import OwnModel
from clientwise.record.run import RunFolder
from recorded import curve
from reported import items_of

CLIENTS = 4
RANK = 2
CONFIG: dict[str, Any] = {
    "name": "adapters",
    "rounds": 4,
    "training": {"batch_size": 8, "learning_rate": 0.3, "epochs": 2},
    "methods": ["FedAvg"],
}


class Adapted(nn.Module):
    """A frozen layer with an adapter, and a head that is trained as a whole."""

    def __init__(self, seed: int | None = None, share_a: bool = False) -> None:
        super().__init__()
        if seed is not None:
            torch.manual_seed(seed)
        self.base = nn.Linear(6, 8).requires_grad_(False)
        self.lora_A = nn.Linear(6, RANK, bias=False).requires_grad_(not share_a)
        self.lora_B = nn.Linear(RANK, 8, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return self.head(adapted.relu())


def network() -> nn.Module:
    return Adapted()


def sharing() -> nn.Module:
    return Adapted(share_a=True)


def samples() -> cw.FederatedData:
    """The class is the largest of three numbers; clients differ in the shift of the others."""
    random = torch.Generator().manual_seed(1)

    def held(client: int, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=random)
        x[:, 3:] += client
        return x, x[:, :3].argmax(1)

    train = [held(client, 40 + 10 * client) for client in range(CLIENTS)]
    test = [held(client, 20) for client in range(CLIENTS)]
    return cw.FederatedData.from_clients(train, test, weigh=held(0, 50), report=held(0, 50))


def engine_of(module: nn.Module) -> LocalEngine:
    return LocalEngine(samples(), module, seed=1)


def after_one_round(method: Method) -> tuple[LocalEngine, Tensor, Tensor, Any]:
    """An engine, the clients' models [n, d] of round 1 from trained adapters, and the result."""
    engine = engine_of(Adapted(seed=3))
    plan = Plan(seed=1, cohort_size=CLIENTS)
    state, _ = run_round(first_state(engine.initial_model, method, engine), method, plan, engine)
    task = Task(2, method.training, state.loss, method.client_criteria)
    sent = list(engine.train(range(CLIENTS), state.model, task))
    models = torch.cat([one.models for one in sent])
    state, record = run_round(state, method, plan, engine)
    return engine, models, state.model, record


def values(engine: LocalEngine, model: Tensor, name: str) -> numpy.ndarray:
    (layer,) = (one for one in engine.spec.layers if one.name == name)
    found: numpy.ndarray = model[..., layer.start : layer.stop].double().numpy()
    return found.reshape(*model.shape[:-1], *layer.shape)


def test_products_are_averaged_and_all_other_values_as_ever() -> None:
    method = Method(training=LocalTraining(learning_rate=0.5, epochs=3))
    engine, models, result, record = after_one_round(method)
    weights = record.weights.numpy()
    assert weights.std() > 0.01
    products = values(engine, models, "lora_B.weight") @ values(engine, models, "lora_A.weight")
    mean = numpy.einsum("n,npq->pq", weights, products)
    left, sizes, right = numpy.linalg.svd(mean)
    nearest = left[:, :RANK] * sizes[:RANK] @ right[:RANK]
    found = values(engine, result, "lora_B.weight") @ values(engine, result, "lora_A.weight")
    numpy.testing.assert_allclose(found, nearest, atol=1e-6)
    left_out = numpy.linalg.norm(mean - nearest) / numpy.linalg.norm(mean)
    assert record.residual == pytest.approx(left_out, rel=1e-4)
    assert record.residual > 1e-4
    heads = values(engine, models, "head.weight")
    numpy.testing.assert_allclose(
        values(engine, result, "head.weight"),
        numpy.einsum("n,npq->pq", weights, heads),
        atol=1e-6,
    )
    assert record.influence is None

    by_factors = Method(adapters="factors", training=method.training)
    engine, models, result, record = after_one_round(by_factors)
    a, b = (
        numpy.einsum("n,npq->pq", weights, values(engine, models, name))
        for name in ("lora_A.weight", "lora_B.weight")
    )
    numpy.testing.assert_allclose(values(engine, result, "lora_A.weight"), a, atol=1e-6)
    assert record.residual is None
    assert numpy.abs(b @ a - mean).max() > 1e-3


def test_only_what_is_trained_is_sent(tmp_path: Path) -> None:
    run = cw.Run(cw.run(CONFIG, tmp_path / "run", data=samples(), model=network))
    names = [name for name, _ in RunFolder(run.folder).model_facts(1).tensors]
    assert names == ["lora_A.weight", "lora_B.weight", "head.weight", "head.bias"]
    assert RunFolder(run.folder).model_facts(1).frozen
    assert run.facts.model_bytes == 4 * (2 * 6 + 8 * 2 + 8 * 3 + 3)
    experiment = load_experiment(CONFIG).with_model(OwnModel(network))
    lines = describe(experiment, samples())
    (line,) = (one for one in lines if one.startswith("model"))
    assert "111 parameters; 55 of them are trained and sent, LoRA adapters of 1 layers" in line


def test_the_trained_network_has_the_frozen_parameters_of_the_run(tmp_path: Path) -> None:
    config = CONFIG | {"seeds": [5, 6]}
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=network))
    own = cw.load(run.folder, module=network)
    first, second = (own.model("FedAvg", seed) for seed in (5, 6))
    assert torch.equal(first.base.weight, second.base.weight)
    assert not torch.equal(first.lora_A.weight, second.lora_A.weight)
    data = samples()
    assert data.report is not None
    inputs = data.samples.inputs[data.report.indices]
    right = (first(inputs).argmax(1) == data.report.targets).double().mean()
    metric = curve(run, "metric", "FedAvg", 5)[4]
    assert float(right) == pytest.approx(metric)
    with pytest.raises(RunError, match="its frozen parameters are not those of the run"):
        cw.load(run.folder, module=Adapted(seed=7)).model("FedAvg", 5)


@pytest.mark.bits
def test_a_run_goes_on_to_the_bit_and_not_with_another_base(tmp_path: Path) -> None:
    config = CONFIG | {"methods": ["FedAvg", {"name": "momentum", "server_step": "momentum"}]}
    data: dict[str, Any] = {"data": samples(), "model": Adapted(seed=2)}
    whole = cw.Run(cw.run(config, tmp_path / "whole", **data))
    cw.run(config | {"rounds": 2}, tmp_path / "part", **data)
    with pytest.raises(RunError, match="other frozen parameters of the network"):
        cw.run(config, tmp_path / "part", resume=True, data=samples(), model=Adapted(seed=9))
    part = cw.Run(cw.run(config, tmp_path / "part", resume=True, **data))
    for method in ("FedAvg", "momentum"):
        one, other = (RunFolder(run.folder).trained(method, 1)[1] for run in (whole, part))
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert curve(whole, "residual", method) == curve(part, "residual", method)


def test_the_residual_is_recorded_and_shown(tmp_path: Path) -> None:
    config = CONFIG | {"methods": ["FedAvg", {"name": "factors", "adapters": "factors"}]}
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=network))
    residuals = curve(run, "residual", "FedAvg")
    assert list(residuals) == [1, 2, 3, 4]
    assert all(0 <= value < 1 for value in residuals.values())
    assert curve(run, "residual", "factors") == {}
    assert "Residual" in items_of(run)["residual"].title


def test_one_factor_for_all_needs_no_products(tmp_path: Path) -> None:
    """With A frozen, the mean of B is exact, so that every part of the formula can be used."""
    config = CONFIG | {"methods": ["FedAvg", {"name": "median", "rule": "median"}]}
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=sharing))
    assert "residual" not in run.frame("rounds")
    assert "lora_A.weight" not in dict(RunFolder(run.folder).model_facts(1).tensors)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"rule": "median"}, r"methods\[0\].rule: median combines single values"),
        ({"rule": "centred_clipping"}, "centred_clipping combines single values"),
        (
            {"before": ["nearest_neighbours"]},
            r"before\[0\]: nearest_neighbours combines single values",
        ),
        (
            {
                "privacy": {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.0},
                "bounds": {"cap": 0.5},
            },
            "mean of products B·A",
        ),
    ],
)
def test_what_cannot_be_is_refused(method: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = CONFIG | {
        "methods": [{"name": "one", **method}],
        "evaluation": {"clients_every": 0},
    }
    with pytest.raises(ConfigError, match=message) as refused:
        cw.run(config, tmp_path / "run", data=samples(), model=network)
    assert "freeze lora_A" in str(refused.value)


def test_what_is_refused_goes_with_factors(tmp_path: Path) -> None:
    methods = [
        {"name": "median", "rule": "median"},
        {
            "name": "private",
            "privacy": {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.0},
            "bounds": {"cap": 0.5},
        },
    ]
    config = CONFIG | {"methods": [{**one, "adapters": "factors"} for one in methods]}
    config["evaluation"] = {"clients_every": 0}
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=network))
    assert run.finished


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "geometric_median", "dnc"])
def test_rules_that_choose_clients_average_products_by_influence(rule: str, tmp_path: Path) -> None:
    config = CONFIG | {"methods": [{"name": rule, "rule": rule, "before": ["clip"]}]}
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=network))
    residuals = curve(run, "residual", rule)
    assert len(residuals) == 4
    if rule == "krum":  # one client's adapters have their rank
        assert max(residuals.values()) < 1e-6


def test_evidence_and_fine_tuning_go_with_adapters(tmp_path: Path) -> None:
    config = CONFIG | {
        "methods": ["Recommended", "AdaFed"],
        "hostile": [{"clients": [3], "attack": "sign_flip"}],
    }
    run = cw.Run(cw.run(config, tmp_path / "run", data=samples(), model=network))
    for method in ("Recommended", "AdaFed"):
        assert len(curve(run, "residual", method)) == 4
        assert max(curve(run, "metric", method).values()) > 0.5


def test_check_counts_the_models_that_products_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_data, "memory", lambda: 2_000)
    experiment = load_experiment(CONFIG).with_model(OwnModel(network))
    with pytest.raises(ConfigError, match="ask fewer clients in a round"):
        describe(experiment, samples())
    by_factors = load_experiment(CONFIG | {"methods": [{"name": "FedAvg", "adapters": "factors"}]})
    assert describe(by_factors.with_model(OwnModel(network)), samples())
