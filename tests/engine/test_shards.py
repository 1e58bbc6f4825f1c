"""A cohort cut into shards: sums over shards are those of the whole, also where a machine dies in mid-round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from safetensors.torch import load_file

import clientwise as cw
import shards_here
from clientwise.core.aggregation.rules import median
from clientwise.core.cohort import fold
from clientwise.core.criteria import make_criterion
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine
from clientwise.engine.shards import ShardedEngine
from clientwise.errors import ClientwiseError
from clientwise.models.networks import linear
from recorded import everything
from shards_here import AllHere

pytestmark = pytest.mark.bits

NODES = 3


def participants(folder: Path) -> Any:
    """What is recorded of every participant, but for the times."""
    return everything(cw.Run(folder))["weights"]


def metrics(folder: Path, frame: str) -> pandas.DataFrame:
    """What is recorded of the models, on the server's samples or on the clients'."""
    return cw.Run(folder).frame(frame).drop(columns=["seconds", "machine"], errors="ignore")


def models(folder: Path) -> dict[str, torch.Tensor]:
    """The last model of every lane."""
    files = sorted((folder / "checkpoints").glob("*.safetensors"))
    return {file.name: load_file(file)["model"] for file in files}


@pytest.fixture
def parts(make_engine: Callable[..., LocalEngine]) -> list[LocalEngine]:
    """The eight clients of `make_engine` in three engines, each with the samples of its own clients alone."""
    whole = make_engine()
    engines = []
    for index in range(NODES):
        torch.manual_seed(0)
        module = linear((1, 8, 8), 10)
        data = whole.data.only(range(index, whole.num_clients, NODES))
        engines.append(LocalEngine(data, module, seed=1, chunk_size=16))
    return engines


def test_a_shard_holds_the_samples_of_its_clients_alone(
    make_engine: Callable[..., LocalEngine], parts: list[LocalEngine]
) -> None:
    whole = make_engine().data
    for index, part in enumerate(parts):
        assert part.num_clients == whole.num_clients
        for client in range(whole.num_clients):
            for held, own in ((whole.train, part.data.train), (whole.test, part.data.test)):
                here = own.indices[own.slice(client)]
                there = held.indices[held.slice(client)]
                if client % NODES != index:
                    assert not len(here)
                    continue
                assert torch.equal(part.data.samples.inputs[here], whole.samples.inputs[there])
                assert torch.equal(own.targets[own.slice(client)], held.targets[held.slice(client)])
    clients = sum(len(part.data.train.indices) for part in parts)
    assert clients == len(whole.train.indices)
    assert all(len(part.data.samples.inputs) < len(whole.samples.inputs) for part in parts)


def test_the_sums_of_shards_are_those_of_the_whole_cohort(
    make_engine: Callable[..., LocalEngine], parts: list[LocalEngine]
) -> None:
    """The weights to the bit; the model to the rounding of a float64, which a float32 rarely shows."""
    whole = make_engine()
    criteria = ("dataset_size", "server_performance", "model_divergence")
    method = Method(criteria=tuple(make_criterion(name) for name in criteria))
    plan = Plan(seed=1, cohort_size=8)
    state = first_state(whole.initial_model, method, whole)
    asked = plan.cohort(8, 1)

    here, record = run_round(state, method, plan, whole)
    there, cut = run_round(state, method, plan, in_shards(whole, parts, method))
    assert cut.client_ids == record.client_ids == asked
    assert torch.equal(cut.weights, record.weights)
    assert torch.equal(cut.raw, record.raw)
    torch.testing.assert_close(there.model, here.model, rtol=1e-7, atol=1e-9)


def test_a_shard_in_which_no_client_can_train_does_not_end_the_round(
    parts: list[LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = parts[0]
    part.is_part = True
    failure = RuntimeError("no memory")
    monkeypatch.setattr(part.executor, "train", lambda jobs: (failure for _ in jobs))
    state = first_state(part.initial_model, Method(), part)
    folded = fold([0, 3], state, Method(), Plan(seed=1, cohort_size=8), part)
    assert folded.client_ids == ()
    assert [refusal.client_id for refusal in folded.refusals] == [0, 3]
    assert not folded.sums.any()


def in_shards(whole: LocalEngine, parts: list[LocalEngine], method: Method) -> ShardedEngine:
    """The clients of `whole`, trained by `parts`."""
    ready = iter(parts)

    def build(_: FederatedData, __: int) -> tuple[LocalEngine, Method, Plan]:
        return next(ready), method, Plan(seed=1, cohort_size=8)

    torch.manual_seed(0)
    module = linear((1, 8, 8), 10)
    return ShardedEngine(
        whole.data, module, seed=1, shards=AllHere(whole.data, build, shards_here.slots(NODES))
    )


@pytest.mark.parametrize("rule", [None, median])
def test_a_round_in_which_no_client_can_train_ends_the_run(
    make_engine: Callable[..., LocalEngine],
    parts: list[LocalEngine],
    monkeypatch: pytest.MonkeyPatch,
    rule: Any,
) -> None:
    """Whether sums travel or models. In one process, the engine itself raises the error."""
    method = Method(rule=rule)
    plan = Plan(seed=1, cohort_size=8)
    engine = in_shards(make_engine(), parts, method)
    state = first_state(engine.initial_model, method, engine)

    def fail(part: LocalEngine) -> None:
        failure = RuntimeError("no memory")
        monkeypatch.setattr(part.executor, "train", lambda jobs: (failure for _ in jobs))

    for part in parts[1:]:
        fail(part)
    _, record = run_round(state, method, plan, engine)
    assert record.client_ids == (0, 3, 6)
    assert len(record.refusals) == 5
    fail(parts[0])
    with pytest.raises(ClientwiseError, match=r"no client could train.*RuntimeError: no memory"):
        run_round(state, method, plan, engine)


SLOW = {"speed": {"name": "lognormal", "median": 50.0, "sigma": 1.5}, "up": 2000.0}
BUFFERED = {"name": "buffered", "pace": {"buffer": 2}}
GATHERING: dict[str, dict[str, Any]] = {
    "an attack that needs all models": {"hostile": [{"clients": [0, 1], "attack": ["alie"]}]},
    "an attack that does not": {"hostile": [{"clients": [0, 1], "attack": ["sign_flip"]}]},
    "poisoned samples from a round on": {
        "hostile": [{"clients": [0, 1], "attack": ["pixel_backdoor"], "from_round": 2}]
    },
    "attackers with models of their own": {
        "hostile": [{"clients": [0, 1], "attack": ["free_rider"], "ignore_global": True}]
    },
    "attackers that judge": {
        "hostile": [{"clients": [0, 1], "attack": ["lying_judge"]}],
        "server_set": {"source": "clients"},
    },
    "devices": {"devices": SLOW, "methods": ["FedAvg", BUFFERED]},
    "attackers with devices": {
        "devices": SLOW,
        "hostile": [{"clients": [0, 1], "attack": ["alie"]}],
        "methods": ["SCAFFOLD", BUFFERED],
    },
    "control variates": {"methods": ["SCAFFOLD"]},
    "clients alone": {"methods": ["Alone"]},
    "the default method": {"methods": ["Recommended"]},
}


@pytest.mark.parametrize("kind", GATHERING)
def test_every_kind_of_run_has_the_same_bits_in_shards(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also where it is resumed: the shards keep nothing."""
    config = tiny | {"rounds": 2, "methods": ["FedAvg", "Median"], "federation": {}}
    config |= GATHERING[kind]
    here = cw.run({**config, "workers": 2}, tmp_path / "here").folder
    shards_here.without_ray(monkeypatch, NODES)
    in_shards = {**config, "workers": "ray"}
    cw.run({**in_shards, "rounds": 1}, tmp_path / "there")
    there = cw.run(in_shards, tmp_path / "there", resume=True).folder
    check_same(there, here)


def check_same(there: Path, here: Path) -> None:
    """The same participants and models to the bit; metrics but for rounding.

    A shard evaluates fewer clients at once, and MKL rounds sums by their number on CPUs without AVX-512.
    """
    assert participants(there) == participants(here)
    for name, model in models(here).items():
        assert torch.equal(models(there)[name], model)
    for frame in ("rounds", "local"):
        pandas.testing.assert_frame_equal(metrics(there, frame), metrics(here, frame), rtol=1e-6)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of three node processes on this machine, to which this process is connected."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": quick}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        nodes.add_node(num_cpus=2)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow  # real processes of Ray, each of which imports PyTorch
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_machine_that_dies_in_mid_round_changes_no_bit(
    tiny: dict[str, Any], tmp_path: Path, cluster: Any
) -> None:
    """Folded sums, gathered models and evaluations: as one process has them, and as before the death."""
    tiny["partition"]["clients"] = 12
    tiny["federation"]["fraction"] = 0.75
    tiny["rounds"] = 2
    tiny["training"]["epochs"] = 100  # a second or more a round
    tiny["methods"] = [tiny["methods"][1], {"name": "median", "rule": "median"}]
    ends: list[float] = []
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

    def on_round(*_: object) -> None:
        ends.append(time.monotonic())
        if len(ends) == 1:
            threading.Timer(0.5, kill).start()

    here = cw.run({**tiny, "workers": 2}, tmp_path / "here").folder
    there = cw.run({**tiny, "workers": "ray"}, tmp_path / "there").folder
    again = cw.run({**tiny, "workers": "ray"}, tmp_path / "again", on_round=on_round).folder
    assert ends[0] < killed[0] < ends[1]
    assert participants(again) == participants(there) == participants(here)
    for frame in ("rounds", "local"):
        pandas.testing.assert_frame_equal(metrics(again, frame), metrics(there, frame))
    for name, model in models(here).items():
        assert torch.equal(models(again)[name], models(there)[name])
        torch.testing.assert_close(models(there)[name], model, rtol=1e-6, atol=1e-8)


@pytest.mark.slow  # real processes of Ray, each of which imports PyTorch
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("cluster")
def test_attackers_devices_and_control_variates_have_the_same_bits_on_ray(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    config = tiny | {
        "federation": {},
        "devices": SLOW,
        "hostile": [
            {"clients": [0], "attack": ["alie"]},
            {"clients": [1], "attack": ["sign_flip"]},
        ],
        "methods": ["SCAFFOLD", "Recommended"],
    }
    here = cw.run({**config, "workers": 2}, tmp_path / "here").folder
    there = cw.run({**config, "workers": "ray"}, tmp_path / "there").folder
    check_same(there, here)
