"""[training] in a config, in `cw.fit` and in `cw.run`: what it takes, what it refuses, and that runs repeat."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.round import first_state
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment

CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "linear",
    "rounds": 3,
    "partition": {"name": "dirichlet", "clients": 4, "concentration": 1.0},
    "methods": ["FedAvg"],
    "device": "cpu",
}
ADAPTS = {"name": "P3", "like": "FedAvg", "adapt_loss": "class_weights"}


def per_sample(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def halved(round_num: int) -> float:
    return 0.5 ** (round_num - 1)


def negative(round_num: int) -> float:
    return 1.0 - round_num


def broken(round_num: int) -> float:
    raise KeyError("no rate")


def jitter(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + 0.3 * torch.randn_like(inputs)


def nothing(inputs: torch.Tensor) -> None:
    inputs + 1


def as_numpy(inputs: torch.Tensor) -> Any:
    return inputs.numpy()


def not_a_number(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * torch.nan


def no_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return per_sample(outputs, targets) * torch.nan


def one_sample(inputs: torch.Tensor) -> torch.Tensor:
    return inputs[:1]


def losses(folder: Path) -> list[float]:
    found: list[float] = cw.Run(folder).frame("rounds")["loss"].tolist()
    return found


def run(tmp_path: Path, name: str, **options: Any) -> list[float]:
    return losses(Path(cw.run(CONFIG, tmp_path / name, progress=False, **options)))


OPTIONS: dict[str, dict[str, Any]] = {
    "a class of PyTorch": {"optimizer": functools.partial(torch.optim.RMSprop, alpha=0.9)},
    "cosine": {"schedule": "cosine"},
    "clipped": {"clip_gradients": 0.1},
    "a function as loss": {"loss": per_sample},
    "a transform": {"transform": {"name": "shift", "pixels": 1}},
    "a function as transform": {"transform": jitter},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return run(tmp_path_factory.mktemp("runs"), "plain", learning_rate=0.02)


@pytest.mark.bits
@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    name: str, plain: list[float], tmp_path: Path
) -> None:
    options = {"learning_rate": 0.02, **OPTIONS[name]}
    if options.get("schedule") == "cosine":  # spans the rounds of the run, which grow here
        options["schedule"] = {"name": "cosine", "rounds": 3}
    whole = run(tmp_path, "whole", **options)
    assert whole != plain
    for rounds in (1, 3):
        cw.run(
            CONFIG, tmp_path / "cut", resume=rounds > 1, progress=False, **options, rounds=rounds
        )
    assert losses(tmp_path / "cut") == whole


def test_methods_may_train_differently_in_one_run(tmp_path: Path) -> None:
    """Lanes are joined where they do the same; each has its own rate, loss and optimizer."""
    own = [
        {"name": "FedAvg"},
        {"name": "cosine", "like": "FedAvg", "training": {"schedule": "cosine"}},
        {"name": "focal", "like": "FedAvg", "training": {"loss": "focal", "optimizer": "adam"}},
    ]
    together = cw.run({**CONFIG, "methods": own}, tmp_path / "all", progress=False)
    frame = together.frame("rounds")
    for index, method in enumerate(own):
        alone = cw.run({**CONFIG, "methods": [method]}, tmp_path / str(index), progress=False)
        expected = alone.frame("rounds")["loss"].tolist()
        assert frame[frame["method"] == method["name"]]["loss"].tolist() == expected


def test_a_cosine_spans_the_rounds_of_the_run(tmp_path: Path) -> None:
    config = {**CONFIG, "training": {"schedule": "cosine"}}
    assert load_experiment(config).to_dict()["training"]["schedule"]["rounds"] == 3
    cw.run(config, tmp_path / "run", progress=False)
    with pytest.raises(cw.ClientwiseError, match=r"training\.schedule\.rounds"):
        cw.run({**config, "rounds": 5}, tmp_path / "run", resume=True, progress=False)


class RateNeeded(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)


@pytest.mark.parametrize(
    ("training", "rate"),
    [
        ({}, 0.1),
        ({"optimizer": "adam"}, 0.001),
        ({"optimizer": functools.partial(torch.optim.RMSprop, alpha=0.8)}, 0.01),
        ({"optimizer": torch.optim.Adam, "learning_rate": 0.1}, 0.1),
    ],
)
def test_without_a_rate_an_optimizer_has_its_own(training: dict[str, Any], rate: float) -> None:
    experiment = load_experiment({**CONFIG, "training": training})
    assert experiment.to_dict()["training"]["learning_rate"] == rate
    assert [method.training.learning_rate for method in experiment.build_methods()] == [rate]
    is_default = "learning_rate" not in training
    (said,) = [line for line in describe(experiment) if line.startswith("optimizer")]
    assert said.endswith(f"learning rate {rate:g}" + " (its default)" * is_default)


def test_a_method_with_another_optimizer_has_its_rate() -> None:
    methods = [
        {"name": "shared", "like": "FedAvg"},
        {"name": "other", "like": "FedAvg", "training": {"optimizer": "adam"}},
        {
            "name": "own",
            "like": "FedAvg",
            "training": {"optimizer": "adam", "learning_rate": 0.02},
        },
        {
            "name": "same",
            "like": "FedAvg",
            "training": {"optimizer": {"name": "sgd", "momentum": 0.9}},
        },
    ]
    config = {**CONFIG, "training": {"learning_rate": 0.05}, "methods": methods}
    experiment = load_experiment(config)
    rates = [method.training.learning_rate for method in experiment.build_methods()]
    assert rates == [0.05, 0.001, 0.02, 0.05]
    again = load_experiment(experiment.to_dict())
    assert [method.training.learning_rate for method in again.build_methods()] == rates


def test_changing_the_optimizer_changes_a_default_rate(tmp_path: Path) -> None:
    for given, expected in [({}, 0.001), ({"learning_rate": 0.05}, 0.05)]:
        config = {**CONFIG, "training": given}
        run = cw.run(config, tmp_path / str(expected), progress=False, optimizer="adam")
        assert run.config["training"]["learning_rate"] == expected


def test_balanced_weights_come_from_the_labels_of_all_clients() -> None:
    config = {**CONFIG, "loss": None, "training": {"loss": {"name": "cross_entropy"}}}
    del config["loss"]
    config["training"]["loss"]["class_weights"] = "balanced"
    experiment = load_experiment(config)
    data, hostile = build_data(experiment, load_samples(experiment), 1)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    (method,) = experiment.build_methods()
    engine = build_engine(experiment, data, hostile, 1, executor, method)
    state = first_state(engine.initial_model, method, engine)
    counts = data.train.targets.bincount(minlength=10)
    expected = len(data.train.targets) / (10 * counts.double())
    assert isinstance(state.loss, CrossEntropy)
    assert state.loss.class_weights == pytest.approx(expected.tolist())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown optimizer": ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
    "unknown option": (
        {"loss": {"name": "focal", "gama": 1.0}},
        "training.loss.gama: unknown option; did you mean 'gamma'",
    ),
    "needs a closure": (
        {"optimizer": torch.optim.LBFGS},
        "LBFGS.step() missing 1 required positional argument: 'closure'",
    ),
    "a rate in a partial": (
        {"optimizer": functools.partial(torch.optim.RMSprop, lr=0.1)},
        "RMSprop: pass the rate as learning_rate=",
    ),
    "an optimizer that was made": (
        {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)},
        "pass the class, torch.optim.SGD",
    ),
    "no rate": (
        {"optimizer": RateNeeded},
        "training.learning_rate: is missing: the optimizer RateNeeded has no default rate",
    ),
    "no rate of a method": (
        {"methods": [{"name": "own", "like": "FedAvg", "training": {"optimizer": RateNeeded}}]},
        "methods[0].training.learning_rate: is missing: the optimizer RateNeeded has no default",
    ),
    "a key that the class lacks": (
        {"optimizer": functools.partial(torch.optim.Adagrad, momentum=0.9)},
        "unexpected keyword argument 'momentum'",
    ),
    "weights for two classes": (
        {"loss": {"name": "cross_entropy", "class_weights": [1.0, 2.0]}},
        "training.loss.class_weights: has 2 weights for 10 classes",
    ),
    "a mean as loss": ({"loss": mean_loss}, 'returned (): use reduction="none"'),
    "a module with a mean": (
        {"loss": nn.CrossEntropyLoss()},
        'use reduction="none"',
    ),
    "a lambda": ({"loss": lambda outputs, targets: outputs}, "a lambda has no name for the record"),
    "a loss on Flower": (
        {"loss": per_sample, "engine": "flower"},
        "other processes cannot use your loss per_sample; register it in a plugin",
    ),
    "balanced on Flower": (
        {"loss": {"name": "cross_entropy", "class_weights": "balanced"}, "engine": "flower"},
        "label counts of all clients, which stay on their nodes",
    ),
    "weights beside those of P3": (
        {"loss": {"name": "focal", "class_weights": "balanced"}, "methods": [ADAPTS]},
        "adapt_loss = 'class_weights' replaces them: remove one of them",
    ),
    "a loss that P3 cannot weigh": (
        {"loss": per_sample, "methods": [ADAPTS]},
        "changes 'cross_entropy' or 'focal', not 'per_sample'",
    ),
    "a loss of the server": (
        {"methods": [{"name": "own", "like": "FedAvg", "fine_tune": {"loss": "focal"}}]},
        "fine_tune.loss: the server trains with that of the clients",
    ),
    "a negative rate": ({"schedule": negative}, "schedule: is 0 in round 1 of 3: must be above 0"),
    "a schedule that fails": ({"schedule": broken}, "failed for round 1: KeyError"),
    "a class as loss": (
        {"loss": nn.CrossEntropyLoss},
        "CrossEntropyLoss is a class: pass a function, or an object as CrossEntropyLoss(...)",
    ),
    "a class as schedule": (
        {"schedule": torch.optim.lr_scheduler.StepLR},
        "StepLR is a class: pass a function",
    ),
    "a loss that is NaN": ({"loss": no_loss}, "methods[0]: does not work on a few samples"),
    "a transform to NaN": (
        {"transform": not_a_number},
        "methods[0]: does not work on a few samples",
    ),
    "a transform to nothing": ({"transform": nothing}, "it must return the changed batch"),
    "a transform to an array": ({"transform": as_numpy}, "must return a tensor"),
    "a transform that drops samples": (
        {"transform": one_sample},
        "methods[0]: does not work on a few samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    options, said = REFUSED[name]
    with pytest.raises(cw.ClientwiseError) as caught:
        cw.run(CONFIG, tmp_path / "run", progress=False, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class Scaled:
    """A transform whose option does not show in its name."""

    def __init__(self, *factors: float) -> None:
        self.factors = factors

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factors[0]


def scaled(factor: float) -> Any:
    def scale(inputs: torch.Tensor) -> torch.Tensor:
        return inputs * factor

    return scale


@pytest.mark.parametrize("kind", [Scaled, scaled, lambda factor: functools.partial(Scaled(factor))])
def test_one_name_stands_for_one_transform(kind: Any) -> None:
    def load(*transforms: Any) -> None:
        methods: list[Any] = [
            {"name": str(number), "like": "FedAvg", "training": {"transform": one}}
            for number, one in enumerate(transforms)
        ]
        load_experiment({**CONFIG, "methods": methods})

    one, other = kind(1.0), kind(2.0)
    load(one, one)
    load(other)  # another config may use the name anew
    for pair in ((one, other), (other, one)):
        with pytest.raises(cw.ClientwiseError, match="two different objects are called"):
            load(*pair)


def test_a_loaded_config_keeps_its_objects(tmp_path: Path) -> None:
    """Another config that is loaded before it runs may have another object of the same name."""

    def losses_of(out: str, config: Any, **options: Any) -> list[float]:
        return losses(Path(cw.run(config, tmp_path / out, progress=False, **options)))

    one, two = ({**CONFIG, "training": {"transform": scaled(factor)}} for factor in (1.0, 5.0))
    expected = losses_of("expected", one)
    loaded = load_experiment(one)
    assert losses_of("other", load_experiment(two)) != expected
    assert losses_of("loaded", loaded) == expected
    load_experiment(two)


@pytest.mark.bits
def test_fit_takes_the_same_keywords(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(90, 5), torch.randint(0, 3, (90,))
    sites = [(inputs[i : i + 30], targets[i : i + 30]) for i in (0, 30, 60)]
    network = nn.Linear(5, 3)
    options: dict[str, Any] = {"optimizer": torch.optim.RMSprop, "schedule": halved}
    options |= {"loss": per_sample, "transform": jitter, "clip_gradients": 1.0}
    one = cw.fit(network, sites, rounds=2, method="FedAvg", progress=False, **options)
    assert one.config["training"]["optimizer"] == "RMSprop"
    two = cw.fit(network, sites, rounds=2, method="FedAvg", progress=False, **options)
    assert torch.equal(one.module.weight, two.module.weight)


FLAT = torch.randn(40, 6), torch.arange(40) % 2
IMAGES = torch.randn(40, 1, 4, 4)
MASKS = IMAGES, (IMAGES[:, 0] > 0).long()
TOKENS = torch.randint(0, 9, (40, 6)), torch.arange(40) % 2


@pytest.mark.parametrize(
    ("network", "samples", "options", "said"),
    [
        (nn.Linear(6, 2), FLAT, {"transform": "flip"}, "flip needs images"),
        (
            nn.Linear(6, 2),
            FLAT,
            {"transform": "shift"},
            "shift needs images, and a sample is a row of numbers",
        ),
        (
            nn.Conv2d(1, 2, 1),
            MASKS,
            {"transform": "flip"},
            "flip moves the inputs, and the targets are images, too",
        ),
        (
            nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(12, 2)),
            TOKENS,
            {"transform": "noise"},
            "noise needs samples of floats",
        ),
        (
            nn.Linear(6, 1),
            (FLAT[0], FLAT[0][:, 0]),
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            "it does not fit outputs (8,) and targets (8,) of float32",
        ),
    ],
)
def test_options_that_do_not_fit_the_samples(
    network: nn.Module, samples: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(cw.ClientwiseError) as caught:
        cw.fit(network, [samples] * 2, rounds=1, device="cpu", **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def in_numpy(inputs: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(inputs.numpy() + numpy.zeros(1))  # float64


def test_losses_of_pytorch_take_masks_and_transforms_may_return_float64() -> None:
    loss = nn.CrossEntropyLoss(reduction="none")
    options = {"loss": loss, "transform": in_numpy, "learning_rate": 0.5, "rounds": 4}
    run = cw.fit(nn.Conv2d(1, 2, 1), [MASKS] * 2, device="cpu", **options)
    assert (run.predict(MASKS[0]) == MASKS[1].numpy()).mean() > 0.8


def odd(round_num: int) -> int:
    return round_num % 2


SHORT_COSINE = {"schedule": {"name": "cosine", "rounds": 3}}


def test_rounds_after_the_end_of_a_schedule_are_refused(tmp_path: Path) -> None:
    """They had a learning rate of 0, and learned nothing."""
    cw.run(CONFIG, tmp_path / "run", progress=False, **SHORT_COSINE)
    ended = r"training.schedule: is 0 in round 4 of 5: must be above 0 .* in another folder"
    with pytest.raises(ConfigError, match=ended):
        cw.run(CONFIG, tmp_path / "run", resume=True, progress=False, rounds=5, **SHORT_COSINE)
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "run"), "--resume", "--rounds", "5"])
    assert shown.exit_code != 0
    assert len(cw.Run(tmp_path / "run").frame("rounds")) == 3
    own = [{"name": "own", "training": SHORT_COSINE}, "FedAvg"]
    with pytest.raises(ConfigError, match=r"methods\[0\]\.training\.schedule: is 0 in round 4"):
        cw.run({**CONFIG, "methods": own, "rounds": 5}, tmp_path / "own", progress=False)
    with pytest.raises(ConfigError, match=r"training\.schedule: is 0 in round 2 of 3"):
        cw.run(CONFIG, tmp_path / "own", progress=False, schedule=odd)
    lasting = {"schedule": {"name": "cosine", "rounds": 2, "end": 0.1}}
    assert len(cw.run(CONFIG, tmp_path / "own", progress=False, **lasting).frame("rounds")) == 3
