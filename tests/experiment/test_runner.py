"""Runs on real data: what is recorded, that methods are paired, and that a killed run goes on with the same bits."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pexpect
import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from torch import Tensor

import clientwise as cw
import processes
from clientwise.core.objective.problem import Regression
from clientwise.data.federated import Holdings, Samples
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.running import resume, runner
from clientwise.models.flat import FlatModel
from clientwise.models.networks import MODELS
from clientwise.record.lock import locked
from locales import in_turkish

TABLES = {  # everything but how long it took
    "lanes": "lane, method, seed, finished",
    "clients": "*",
    "rounds": "lane, round_num, metric, macro_f1, loss, local_mean, local_p10, local_p90, priority, candidates, "
    "testing_rounds, class_weights, loss_shape, per_class_f1, no_effect, notes",
    "participants": "lane, round_num, client, refusal, score, weight, training_loss",
    "criteria": "*",
    "local": "*",
    "best": "*",
}


def content(folder: Path) -> dict[str, Any]:
    """All that a run left, but for the times."""
    run = cw.Run(folder)
    tables = {
        name: run.query(f"SELECT {columns} FROM {name} ORDER BY 1, 2, 3")
        for name, columns in TABLES.items()
    }
    models = {
        path.name: {key: value.numpy().tobytes() for key, value in load_file(path).items()}
        for path in sorted((folder / "checkpoints").glob("*.safetensors"))
    }
    return {**tables, "checkpoints": models}


def test_a_run_folder_holds_what_happened(tiny: dict[str, Any], tmp_path: Path) -> None:
    seen = []
    folder = cw.run(tiny, tmp_path / "run", on_round=seen.append)
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "checkpoints",
        "config.toml",
        "run.sqlite",
        "versions.json",
    ]
    for name in ("FedAvg", "all of it"):  # side by side, or one after the other
        assert [step.record.round_num for step in seen if step.method == name] == [1, 2, 3]
    assert [(step.done, step.total) for step in seen] == [(done, 6) for done in range(1, 7)]
    run = cw.Run(folder)
    assert run.finished
    assert run.query("SELECT COUNT(*) FROM rounds") == [(6,)]
    assert run.query("SELECT COUNT(*) FROM participants WHERE refusal IS NULL") == [(18,)]
    assert run.query("SELECT COUNT(*) FROM criteria") == [(9 + 27,)]
    assert run.query("SELECT COUNT(*) FROM local") == [(36,)]
    for (total,) in run.query("SELECT SUM(weight) FROM participants GROUP BY lane, round_num"):
        assert total == pytest.approx(1)
    ((priority, candidates, tests, kappa),) = run.query(
        "SELECT priority, candidates, testing_rounds, class_weights FROM rounds WHERE lane = 2 AND round_num = 3"
    )
    assert tests >= 1
    assert None not in (priority, candidates, kappa)


def test_methods_of_a_seed_meet_the_same_cohorts_and_start_alike(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny["seeds"] = [1, 2]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    cohorts = {
        lane: run.query(
            "SELECT round_num, client FROM participants WHERE lane = ? ORDER BY 1, 2", lane
        )
        for lane, _, _ in run.lanes
    }
    assert cohorts[1] == cohorts[2]
    assert cohorts[3] == cohorts[4]
    assert cohorts[1] != cohorts[3]
    first = [
        run.query(
            "SELECT client, training_loss FROM participants WHERE lane = ? AND round_num = 1", lane
        )
        for lane in (1, 2)
    ]
    assert first[0] == first[1]  # same model, same data, same batches


@pytest.mark.bits
def test_the_same_config_gives_the_same_bits(tiny: dict[str, Any], tmp_path: Path) -> None:
    assert content(cw.run(tiny, tmp_path / "one")) == content(cw.run(tiny, tmp_path / "two"))


def test_your_own_arrays_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    random = numpy.random.default_rng(1)

    def share(count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        inputs = random.normal(size=(count, 5))
        return inputs, (inputs[:, 0] > 0).astype(int)

    data = cw.FederatedData.from_clients(
        [share(n) for n in (40, 10, 60, 30)],
        [share(10) for _ in range(4)],
        weigh=share(50),
        report=share(50),
    )
    tiny |= {"rounds": 15, "training": {"learning_rate": 1.0}}
    del tiny["data"], tiny["partition"]
    run = cw.Run(cw.run(tiny, tmp_path / "run", data=data))
    assert all(line.metric[0] > 0.8 for line in run.summary())
    with pytest.raises(ConfigError, match="data: is missing"):
        cw.run(tiny, tmp_path / "nothing")

    tiny["hostile"] = [
        {"clients": [1], "attack": "wrong_labels"}
    ]  # the hostile can be played on your arrays too
    hostile = cw.Run(cw.run(tiny, tmp_path / "hostile", data=data))
    assert hostile.query("SELECT client FROM clients WHERE hostile IS NOT NULL") == [(1,)]
    before, after = (
        one.query("SELECT metric FROM local WHERE lane = 1 AND round_num = 15 AND client = 1")
        for one in (run, hostile)
    )
    assert after[0][0] < 0.5 < before[0][0]


@pytest.mark.bits
def test_regression_with_everything(tmp_path: Path) -> None:
    config = {
        "name": "regression",
        "rounds": 4,
        "data": "diabetes",
        "partition": {"name": "quantity", "clients": 5},
        "model": "linear",
        "training": {"epochs": 3, "batch_size": 20, "learning_rate": 0.05},
        "evaluation": {"metric": "mape", "target": 0.45},
        "methods": [
            {"name": "FedAvg"},
            {
                "name": "AdaFed",
                "criteria": [{"name": "server_performance", "metric": "mae"}, "dataset_size"],
                "score": "product",
                "adapt_loss": "robust_shape",
            },
            {
                "name": "online",
                "criteria": ["server_performance", "dataset_size"],
                "adjust": "best_order",
            },
        ],
    }
    run = cw.Run(cw.run(config, tmp_path / "run"))
    assert run.metric == "mape"
    assert not run.higher_is_better
    for line in run.summary():
        assert 0.2 < line.metric[0] < 0.7
        assert line.macro_f1 == [None]
        assert line.worst_client[0] >= line.metric[0] * 0.8
    shapes = run.query("SELECT loss_shape FROM rounds WHERE lane = 2")
    assert all(0.2 <= shape <= 2.0 for (shape,) in shapes)


@pytest.mark.bits
def test_survival_with_everything(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(240, 4)
    times = torch.exp(-2 * inputs[:, 0] + 0.3 * torch.randn(240))
    targets = torch.where(
        torch.rand(240) < 0.5, times, -0.7 * times
    )  # half are lost before it happens
    blocks = list(zip(inputs.split(40), targets.split(40), strict=True))
    data = cw.FederatedData.from_clients(
        blocks[:3], blocks[3:], weigh=blocks[0], report=blocks[1], survival=True
    )
    config: dict[str, Any] = {
        "name": "survival",
        "rounds": 12,
        "model": "linear",
        "training": {"epochs": 2, "batch_size": 8, "learning_rate": 0.1},
        "evaluation": {"target": 0.8},
        "hostile": [{"clients": [1], "attack": "mirrored_labels"}],
        "methods": [
            "FedAvg",
            "AdaFed",
            "Evidence",
            "ServerTuning",
            "Alone",
            "Pooled",
            {
                "name": "online",
                "criteria": ["server_performance", "dataset_size"],
                "adjust": "best_order",
            },
        ],
    }
    run = cw.Run(cw.run(config, tmp_path / "run", data=data))
    assert (run.metric, run.higher_is_better) == ("concordance", True)
    found = {line.method: line.metric[0] for line in run.summary()}
    assert (
        0.8 < min(found.values()) <= found["FedAvg"] < found["Evidence"] < 1
    )  # it sees who mirrors times
    config["methods"] = [
        {"name": "AdaFed", "criteria": [{"name": "server_performance", "metric": "mape"}]}
    ]
    with pytest.raises(
        ConfigError, match="mape needs numbers to predict, and this is survival; use 'concordance'"
    ):
        cw.run(config, tmp_path / "refused", data=data)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (
            ["methods.1.adapt_loss='robust_shape'"],
            ["methods[1].adapt_loss: robust_shape needs numbers to predict", "use 'class_weights'"],
        ),
        (
            ["methods.1.criteria=[{name='server_performance', metric='mape'}, 'trust']"],
            ["metric: mape needs numbers to predict"],
        ),
        (
            ["methods.1.criteria=[{name='server_performance', metric='acuracy'}, 'trust']"],
            ["did you mean 'accuracy'"],
        ),
        (
            ["partition.clients=1000000000"],
            ["partition.clients = 1000000000: too many clients for 1797 samples"],
        ),
        (
            ["hostile=[{clients=7, attack='broken'}]"],
            ["hostile[0].clients: 7 hostile clients of 6"],
        ),
        (["hostile=[{clients=[6], attack='broken'}]"], ["[6] are not clients"]),
        (
            ["hostile=[{clients=[1], attack='broken'}, {clients=[1], attack='boast'}]"],
            ["hostile[1].clients: [1]"],
        ),
        (
            ["federation={clients_per_round=7}"],
            ["federation.clients_per_round = 7: there are only 6 clients"],
        ),
        (["evaluation.target=85.0"], ["evaluation.target = 85.0: accuracy is at most 1"]),
        (["attributes={age=[1.0]}"], ["attributes.age: has 1 values for 6 clients"]),
        (["attributes={job=['a', 1.0]}"], ["attributes: 'job' has words and numbers"]),
        (
            ["methods.0.criteria=[{name='attribute', of='age'}]"],
            ["the clients have no attribute 'age'"],
        ),
        (
            ["methods.0.criteria=[{name='sharpness', blurry='Blurry'}]"],
            ["no sample attribute 'Blurry'"],
        ),
        (["server_set.fraction=0.0002"], ["methods[1]: there are no samples to weigh by"]),
        (["model={name='cnn', channels=[4, 4, 4, 4, 4]}"], ["model: "]),
        (["device='cuda'"], ["finds no GPU"]),
        (
            ["evaluation.target=85.0", "hostile=[{clients=7, attack='broken'}]"],
            ["evaluation.target", "hostile[0]"],
        ),
    ],
)
def test_what_only_the_data_can_tell(
    tiny: dict[str, Any], tmp_path: Path, changes: list[str], reasons: list[str]
) -> None:
    if "cuda" in changes[0] and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "my.toml").write_text(tomli_w.dumps(tiny))
    with pytest.raises(cw.ClientwiseError) as caught:
        cw.run(cw.load(tmp_path / "my.toml", changes), tmp_path / "run")
    for reason in reasons:
        assert reason in str(caught.value)
    assert "device" in changes[0] or str(caught.value).startswith(str(tmp_path / "my.toml"))
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_commercial_targets_from_toml(tiny: dict[str, Any], tmp_path: Path) -> None:
    text = """
        attributes = { member = [true, false, true, true, false, true], job = ["a", "b", "a", "b", "c", "c"] }
        [[methods]]
        name = "members"
        criteria = [{ name = "attribute", of = "member", high = 1.0 }]
        [[methods]]
        name = "jobs"
        criteria = [{ name = "is_one_of", of = "job", values = ["b", "c"] }]
    """
    tiny |= tomllib.loads(text) | {"federation": {"fraction": 1.0}}
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    weights = "SELECT DISTINCT client, weight > 0 FROM participants JOIN lanes USING (lane) WHERE method = ? ORDER BY 1"
    assert [held for _, held in run.query(weights, "members")] == [1, 0, 1, 1, 0, 1]
    assert [held for _, held in run.query(weights, "jobs")] == [0, 1, 0, 1, 1, 1]


def test_a_criterion_that_compares_clients_is_found_before_the_first_round(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    def shared(arrivals: cw.Arrivals) -> Tensor:
        """A model's share of all distances."""
        return torch.full((len(arrivals.client_ids),), 1 / len(arrivals.client_ids))

    cw.criterion("shared undeclared", measured_by="server", high=1.0)(shared)
    cw.criterion("shared", measured_by="server", high=1.0, needs={"whole_cohort"})(shared)
    with pytest.raises(
        cw.ClientwiseError,
        match="depends on the other clients: declare needs",
    ):
        cw.run(
            tiny | {"methods": [{"name": "a", "criteria": ["shared undeclared"]}]},
            tmp_path / "undeclared",
        )
    assert cw.Run(
        cw.run(tiny | {"methods": [{"name": "a", "criteria": ["shared"]}]}, tmp_path / "run")
    ).finished


def test_attributes_and_two_of_a_kind_from_toml(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["attributes"] = {
        "premium": [1.0, 0.0, 1.0, 0.0, 1.0, 0.5],
        "age": [30.0, 40.0, 50.0, 60.0, 70.0, 80.0],
    }
    tiny["methods"] = [
        {
            "name": "targets",
            "criteria": [
                {"name": "attribute", "of": "premium"},
                {"name": "attribute", "as": "age", "of": "age"},
            ],
            "score": {"name": "prioritized", "priority": ["age", "attribute"]},
        }
    ]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    for client, raw in run.query("SELECT client, raw FROM criteria WHERE criterion = 'age'"):
        assert raw == tiny["attributes"]["age"][client]
    assert run.query("SELECT DISTINCT criterion FROM criteria ORDER BY 1") == [
        ("age",),
        ("attribute",),
    ]
    assert cw.run(
        run.folder / "config.toml", run.folder, resume=True
    )  # `as` is written out and read back


def test_fine_tuning_on_the_servers_set(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["methods"] = [
        {"name": "FedAvg"},
        {"name": "tuned", "fine_tune": {"epochs": 3, "batch_size": 10}},
    ]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    plain, tuned = (dict(run.curve("metric", name, 1)) for name in run.methods)
    assert (
        tuned[1] > plain[1]
    )  # three clients of skewed data have seen little; the server's set has all classes
    for change, reason in (
        ("server_set.source=clients", "needs samples of the server"),
        ("server_set.fraction=0", "needs samples to weigh by"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            cw.load(tiny, [change])
        assert any(key.startswith("methods[1]") for key, _ in caught.value.issues)
    tiny["methods"][1] |= {"criteria": ["dataset_size", "label_diversity"], "adjust": "best_order"}
    with pytest.raises(ConfigError, match="does not go with adjust"):
        cw.load(tiny)


def test_the_server_tunes_only_as_far_as_its_samples_get_better(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    wild = {"epochs": 3, "batch_size": 10, "learning_rate": 30.0}
    tiny["methods"] = [
        {"name": "FedAvg"},
        {"name": "searched", "fine_tune": wild},
        {"name": "all the way", "fine_tune": wild | {"line_search": False}},
    ]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    plain, searched, wildly = (dict(run.curve("loss", name, 1)) for name in run.methods)
    assert wildly[1] > 2 * plain[1]
    assert searched[1] < 1.2 * plain[1]


@pytest.mark.bits
def test_the_best_round_of_the_honest_is_kept_bit_by_bit(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {
        "server_set": {"fraction": 0.0},
        "methods": [{"name": "FedAvg"}],
        "checkpoint_seconds": 0.0,
    }
    tiny["hostile"] = [{"clients": [0], "attack": "wrong_labels"}]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    assert len(run.query("SELECT * FROM best")) == 1  # of every lane only the best remains
    _, metric, right = run.best_round("FedAvg", 1)
    (honest,) = run.query("SELECT SUM(num_test) FROM clients WHERE hostile IS NULL")[0]
    assert len(right) == honest
    assert metric == max(value for _, value in run.curve("metric", "FedAvg", 1))
    assert right.mean() == pytest.approx(metric)


def test_two_classes_take_one_output(tmp_path: Path, tiny: dict[str, Any]) -> None:
    inputs, targets = numpy.eye(20, dtype=numpy.float32), numpy.arange(20) % 2
    data = cw.FederatedData.from_clients(
        [(inputs, targets)] * 2, [(inputs, targets)] * 2, report=(inputs, targets)
    )
    tiny |= {
        "methods": [{"name": "FedAvg"}],
        "federation": {},
        "model": {"name": "mlp", "hidden": [30]},
        "rounds": 5,
    }
    tiny["training"] = {"epochs": 20, "learning_rate": 1.0}
    del tiny["data"], tiny["partition"]
    folder = cw.run(tiny, tmp_path / "run", data=data)
    model = load_file(folder / "checkpoints" / "lane-1.safetensors")["model"]
    assert len(model) == 20 * 30 + 30 + 30 + 1
    assert cw.Run(folder).summary()[0].metric == [1.0]


def test_errors_of_an_image_that_sums_to_a_count(tiny: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    density = torch.rand(40, 8, 8)
    samples = Samples(density[:, None], density, Regression(sums=True))
    shares = Holdings.of([(torch.arange(40), density)])
    data = cw.FederatedData(samples, shares, shares, None, shares)
    tiny |= {"methods": [{"name": "FedAvg"}], "federation": {}, "rounds": 1}
    tiny["evaluation"] = {"metric": "mape"}
    tiny["model"] = {"name": "fully_convolutional", "channels": [2], "middle": [2]}
    del tiny["data"], tiny["partition"]
    run = cw.Run(cw.run(tiny, tmp_path / "run", data=data))
    (mape,) = run.summary()[0].metric
    network = MODELS.get("fully_convolutional")((1, 8, 8), 64, channels=[2], middle=[2])
    model = FlatModel(network, torch.device("cpu"))
    model.load(load_file(run.folder / "checkpoints" / "lane-1.safetensors")["model"])
    with torch.no_grad():
        answers = model.module.eval()(density[:, None]).flatten(1).sum(1)
    counts = density.flatten(1).sum(1)
    assert mape == pytest.approx(float(((answers - counts).abs() / counts).mean()), rel=1e-4)


def test_hostile_clients_lose_their_weight_under_adafed(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {
        "rounds": 8,
        "federation": {},
        "hostile": [
            {"clients": 2, "attack": "wrong_labels", "ignore_global": True},
            {"clients": 1, "attack": "broken"},
        ],
    }
    tiny["methods"][1] = {
        "name": "AdaFed",
        "criteria": ["server_performance"],
        "score": {"name": "product", "powers": {"server_performance": 3}},
    }
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    fedavg, adafed = run.summary()
    assert adafed.hostile_influence[0] < 0.1 * fedavg.hostile_influence[0]
    assert adafed.metric[0] > fedavg.metric[0]
    assert fedavg.refused == adafed.refused == [8]  # the broken one, every round
    assert run.query("SELECT DISTINCT refusal FROM participants WHERE refusal IS NOT NULL") == [
        ("model has NaN or Inf",)
    ]


@pytest.mark.parametrize("source", ["clients", "contributed"])
def test_adafed_without_a_server_set(tiny: dict[str, Any], tmp_path: Path, source: str) -> None:
    tiny |= {
        "rounds": 6,
        "server_set": {"source": source},
        "hostile": [{"clients": 1, "attack": "sign_flip"}],
    }
    tiny["federation"] = {}
    tiny["methods"][1] = {
        "name": "AdaFed",
        "criteria": ["server_performance"],
        "adapt_loss": "class_weights",
    }
    fedavg, adafed = cw.Run(cw.run(tiny, tmp_path / "run")).summary()
    assert adafed.hostile_influence[0] < fedavg.hostile_influence[0]


# Going on ----------------------------------------------------------------------------------------------------------


def killable(tmp_path: Path) -> Path:
    """An experiment whose state is as rich as it gets, long enough to be killed in."""
    config = {
        "name": "killable",
        "rounds": 20,
        "seeds": [1, 2],
        "device": "cpu",
        "checkpoint_seconds": 0.0,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 8},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
        "federation": {"fraction": 0.5},
        "hostile": [{"clients": 2, "attack": "wrong_labels", "ignore_global": True}],
        "methods": [
            {
                "name": "everything",
                "criteria": ["trust", "server_performance", "dataset_size"],
                "adjust": "first_improvement",
                "adapt_loss": "class_weights",
                "server_step": "adam",
            },
        ],
    }
    path = tmp_path / "killable.toml"
    path.write_text(tomli_w.dumps(config))
    return path


def rounds_done(folder: Path) -> int:
    """How many rounds are in the database of a run that another process is writing."""
    try:
        with sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True) as database:
            return int(database.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def wait_for(condition, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    config = killable(folder)
    cw.run(config, folder / "run")
    return config, content(folder / "run")


@pytest.mark.bits
def test_killed_again_and_again_it_ends_with_the_same_bits(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    kills = 0
    for rounds in (0, 1, 11, 19, 20, 27):
        again = ["--resume"] if kills else []
        process = processes.start(processes.COMMAND, "run", config, "--out", folder, *again)
        wait_for(
            lambda rounds=rounds, process=process: (
                (rounds_done(folder) >= rounds and (folder / "config.toml").exists())
                or not process.is_alive()
            )
        )
        time.sleep(0.003 * kills)  # each time at another moment of the round
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 6
    processes.run(processes.COMMAND, "run", folder, "--resume").check_returncode()
    assert content(folder) == expected


HALF_A_ROUND = """
import locale, os, signal, sys
locale.setlocale(locale.LC_ALL, "")
assert locale.setlocale(locale.LC_ALL) == os.environ["LC_ALL"]
import clientwise as cw
from clientwise.record.writer import Store
inner = Store._insert
def insert(store, table, lane, round_num, rows):
    inner(store, table, lane, round_num, rows)
    if round_num == 7:
        os.kill(os.getpid(), signal.SIGKILL)
Store._insert = insert
cw.run(sys.argv[1], sys.argv[2])
"""


@pytest.mark.bits
def test_killed_in_a_round_in_turkish_it_has_whole_rounds_only(
    uninterrupted, tmp_path: Path
) -> None:
    """There, Python does not see that INSERT has to begin a transaction."""
    config, expected = uninterrupted
    turkish = in_turkish(tmp_path)
    folder = tmp_path / "run"
    killed = processes.run(HALF_A_ROUND, config, folder, env=turkish)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = cw.Run(folder)
    for table in ("rounds", "participants", "criteria"):
        found = run.query(f"SELECT DISTINCT round_num FROM {table} ORDER BY 1")
        assert found == [(1,), (2,), (3,), (4,), (5,), (6,)], table
    in_locale = "import locale; locale.setlocale(locale.LC_ALL, ''); " + processes.COMMAND
    processes.run(in_locale, "run", folder, "--resume", env=turkish).check_returncode()
    assert content(folder) == expected


CRASH = """
import os, sys
import clientwise as cw
original, calls = os.replace, []
def crash(source, target):
    if str(target).endswith(".safetensors"):
        calls.append(1)
        if len(calls) == 9:  # the ninth round is in the database, its checkpoint only as .part
            os._exit(77)
    original(source, target)
os.replace = crash
cw.run(sys.argv[1], sys.argv[2])
"""


@pytest.mark.bits
def test_a_crash_at_the_worst_moment_is_mended(uninterrupted, tmp_path: Path) -> None:
    """After the database's commit, with the new checkpoint written but not yet in its place."""
    config, expected = uninterrupted
    folder = tmp_path / "run"
    assert processes.run(CRASH, config, folder).returncode == 77
    assert rounds_done(folder) == 9
    assert list((folder / "checkpoints").glob("*.part"))
    cw.run(config, folder, resume=True)
    assert content(folder) == expected
    assert list((folder / "checkpoints").glob("*.part")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_says_how_to_go_on(
    uninterrupted, tmp_path: Path, how: signal.Signals
) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    arguments = ("run", config, "--out", folder, "--set", "checkpoint_seconds=1000")
    process = processes.start(processes.COMMAND, *arguments, stderr=tmp_path / "stderr")
    wait_for(lambda: rounds_done(folder) >= 5)
    os.kill(process.pid, how)
    process.join(60)
    message = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, message
    assert f"run {folder} --resume" in " ".join(message.split())
    assert "Traceback" not in message
    before = rounds_done(folder)
    seen: list[int] = []
    cw.run(
        folder / "config.toml", folder, resume=True, on_round=lambda step: seen.append(step.done)
    )
    assert (
        before - 1 <= seen[0] - 1 <= before
    )  # it went on where it was, though no checkpoint was due
    assert content(folder) == expected


def test_when_its_terminal_is_closed_it_stops_after_saving(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    arguments = ["-m", "clientwise", "run", config, "--out", folder]
    arguments += ["--set", "checkpoint_seconds=1000"]
    child = pexpect.spawn(
        sys.executable,
        [str(one) for one in arguments],
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also under nohup
    )
    wait_for(lambda: rounds_done(folder) >= 5)
    child.ptyproc.fileobj.close()  # by its owner, who would close the number a second time
    _, status = os.waitpid(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    before = rounds_done(folder)
    seen: list[int] = []
    cw.run(
        folder / "config.toml", folder, resume=True, on_round=lambda step: seen.append(step.done)
    )
    assert before <= seen[0] <= before + 1
    assert content(folder) == expected


def test_under_nohup_it_goes_on(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    ignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = processes.start(ignored + processes.COMMAND, "run", config, "--out", folder)
    wait_for(lambda: rounds_done(folder) >= 5)
    os.kill(process.pid, signal.SIGHUP)
    process.join(120)
    assert process.exitcode == 0
    assert content(folder) == expected


STOPS = """
import os, signal
if os.environ.get("STOPPED"):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_stopped_before_it_is_resumed_it_says_how_to_go_on(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the config is read: a plugin stops the command."""
    (tmp_path / "stops_itself.py").write_text(STOPS)
    plugin = {"plugins": ["stops_itself"], "plugin_dir": str(tmp_path)}
    folder = cw.run(tiny | plugin, tmp_path / "run")
    monkeypatch.setenv("STOPPED", "yes")
    process = processes.start(
        processes.COMMAND, "run", folder, "--resume", stderr=tmp_path / "stderr"
    )
    process.join(60)
    message = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, message
    assert f"run {folder} --resume" in " ".join(message.split())


def test_a_folder_that_is_not_this_run_is_left_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = cw.run(tiny, tmp_path / "run")
    with pytest.raises(
        RunError,
        match=r"there is a run already\. Resume it .*resume=True.* or choose another output folder",
    ):
        cw.run(tiny, folder)
    with pytest.raises(RunError, match=r"another config: training.epochs = 3 \(was 1\)"):
        cw.run(cw.load(tiny, ["rounds=9", "training.epochs=3"]), folder, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not touch")
    with pytest.raises(RunError, match="not empty, and not a run"):
        cw.run(tiny, tmp_path / "mine")
    with pytest.raises(RunError, match="no run here to resume"):
        cw.run(tiny, tmp_path / "typo", resume=True)
    with pytest.raises(RunError, match="cannot be written to"):
        cw.run(tiny, tmp_path / "mine" / "thesis.tex" / "run")
    with locked(folder), pytest.raises(RunError, match="another clientwise process"):
        cw.run(tiny, folder, resume=True)
    assert cw.run(tiny, folder, resume=True) == folder  # finished: nothing to do, nothing changed


def grown(folder: Path) -> dict[str, Any]:
    """All that a run left by method and seed, however its lanes are numbered."""
    run, found = cw.Run(folder), content(folder)
    lanes = {lane: (method, seed) for lane, method, seed in run.lanes}
    tables = {
        name: sorted(((lanes[row[0]], *row[1:]) for row in found[name]), key=repr)
        for name in ("rounds", "participants", "criteria", "local", "best")
    }
    models = {lanes[lane]: found["checkpoints"][f"lane-{lane}.safetensors"] for lane in lanes}
    return {
        **tables,
        "models": models,
        "clients": found["clients"],
        "finished": run.finished,
        "methods": run.methods,
    }


@pytest.mark.bits
def test_a_finished_run_goes_on_to_what_it_had_been_from_the_start(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {"rounds": 3, "seeds": [1, 2], "evaluation": {"clients_every": 2}}
    tiny["methods"] = [tiny["methods"][0], "FedYogi", tiny["methods"][1]]
    expected = grown(cw.run(tiny, tmp_path / "whole"))
    first = tiny | {"rounds": 1, "seeds": [1], "methods": tiny["methods"][:2]}
    folder = cw.run(first, tmp_path / "grown")
    assert cw.Run(folder).query("SELECT COUNT(*) FROM local WHERE round_num = 1") == [
        (12,)
    ]  # the last one, so far
    seen: list[tuple[int, int]] = []
    cw.run(tiny, folder, resume=True, on_round=lambda step: seen.append((step.done, step.total)))
    assert (len(seen), seen[-1]) == (16, (18, 18))  # what was there is not computed again
    assert grown(folder) == expected
    fewer = first | {"rounds": 3}
    cw.run(fewer, folder, resume=True)  # nothing is lost by asking for fewer seeds and methods
    assert grown(folder) == expected
    with pytest.raises(RunError, match=r"rounds = 1 \(was 3\).*set rounds = 3 or more"):
        cw.run(first, folder, resume=True)
    assert cw.load(folder / "config.toml").seeds == [1, 2]
    with pytest.raises(
        RunError, match=r"methods.FedAvg.criteria.0.name.*give a changed method another name"
    ):
        cw.run(
            tiny | {"methods": [{"name": "FedAvg", "criteria": ["label_diversity"]}]},
            folder,
            resume=True,
        )


def test_two_that_begin_at_once_do_not_meet_in_one_folder(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find nothing there; one runs, the other is told so, and the config is that of the one that runs."""
    begin, refused = threading.Barrier(2), threading.Event()
    original = runner.validate
    monkeypatch.setattr(runner, "validate", lambda *given: (original(*given), begin.wait(60))[0])

    def start(name: str) -> str:
        try:
            cw.run(
                tiny | {"name": name}, tmp_path / "run", on_round=lambda progress: refused.wait(60)
            )
        except RunError as error:
            refused.set()
            return str(error)
        return name

    with ThreadPoolExecutor(2) as threads:
        said = set(threads.map(start, ("one", "two")))
    (winner,) = said & {"one", "two"}
    assert said - {winner} == {
        f"{tmp_path / 'run'}: another clientwise process is writing to this run"
    }
    assert cw.load(tmp_path / "run" / "config.toml").name == winner


def test_a_folder_is_locked_before_it_is_looked_at(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder), pytest.raises(RunError, match="another clientwise process"):
        cw.run(tiny, folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert cw.Run(cw.run(tiny, folder)).finished  # whoever held it left before it wrote anything


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda number: resume.new_folder("my run", tmp_path / "runs"), range(24))
        )
    assert len(set(made)) == 24
    assert all(folder.is_dir() and folder.name.startswith("my-run-") for folder in made)


def test_nobody_becomes_somebody_else_when_a_run_is_resumed(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {"rounds": 1, "flower": {"clients": ["ward-a", "ward-b"], "min_replies": 2}}
    folder = cw.run(tiny, tmp_path / "run")
    for key, value in (
        ("clients", ["ward-b", "ward-a"]),  # the trust of one would be the other's
        ("clients", ["ward-a", "ward-c"]),
        ("min_replies", 1),
        ("num_classes", 3),
    ):
        other = tiny | {"flower": tiny["flower"] | {key: value}}
        with pytest.raises(RunError, match=rf"another config: flower.{key}"):
            cw.run(other, folder, resume=True)
    patient = tiny["flower"] | {"train_seconds": 9.0, "evaluate_seconds": 9.0}
    assert cw.run(tiny | {"flower": patient}, folder, resume=True) == folder


def test_a_resumed_run_must_be_the_same_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    def data(count: int) -> cw.FederatedData:
        x = numpy.arange(20.0).reshape(10, 2)
        share = (x, [0, 1] * 5)
        return cw.FederatedData.from_clients([share] * count, [share] * count, report=share)

    def alter(sql: str) -> None:
        with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
            database.execute(sql)

    del tiny["data"], tiny["partition"], tiny["methods"][1]
    folder = cw.run(tiny, tmp_path / "own", data=data(2))
    with pytest.raises(RunError, match=r"other data \(seed 1\)"):
        cw.run(tiny, folder, data=data(3), resume=True)
    alter("DELETE FROM rounds WHERE round_num = 2")
    alter("UPDATE lanes SET finished = 0")
    with pytest.raises(RunError, match="2 of the 3 rounds"):
        cw.run(tiny, folder, data=data(2), resume=True)
    alter("PRAGMA user_version = 99")
    with pytest.raises(
        RunError, match=r"by another version of clientwise \(format 99; .* Use that version"
    ):
        cw.run(tiny, folder, data=data(2), resume=True)
