"""What a GPU computes is what a CPU computes: every method, every attack, devices; and CUDA graphs that survive."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
import shards_here
from clientwise.attacks import ATTACKS
from clientwise.engine.device import CudaGraph, share_gpu
from clientwise.engine.executor import DeviceExecutor
from clientwise.errors import ClientwiseError
from clientwise.experiment.config_file import METHODS
from recorded import curve

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def small(tiny: dict[str, Any]) -> dict[str, Any]:
    """Six clients and a server with samples; the same arithmetic on both devices but for rounding."""
    return tiny | {
        "rounds": 2,
        "federation": {},
        "precision": "float32",
        "partition": {"name": "iid", "clients": 6},
    }


def losses(config: dict[str, Any], device: str, folder: Path) -> dict[str, list[float]]:
    """Of every method after each round."""
    run = cw.Run(cw.run(config | {"device": device}, folder / device, progress=False))
    return {name: list(curve(run, "loss", name).values()) for name in run.methods}


def assert_same_on_both(config: dict[str, Any], folder: Path) -> None:
    on_cpu, on_gpu = (losses(config, device, folder) for device in ("cpu", "cuda"))
    for name, expected in on_cpu.items():
        assert on_gpu[name] == pytest.approx(expected, rel=1e-3, nan_ok=True), name


def test_every_method(small: dict[str, Any], tmp_path: Path) -> None:
    assert_same_on_both(small | {"methods": list(METHODS), "devices": {}}, tmp_path)


def test_two_shards_on_one_gpu(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: Ray would place each shard on a GPU of its own."""
    config = small | {
        "methods": ["FedAvg", "SCAFFOLD", "Recommended"],
        "hostile": [{"clients": [0], "attack": ["alie"], "from_round": 2, "ignore_global": True}],
    }
    for name, changes in {"honest": {"hostile": []}, "hostile": {}}.items():
        whole = losses(config | changes, "cuda", tmp_path / name)
        with monkeypatch.context() as patch:
            shards_here.without_ray(patch, 2)
            cut = losses(config | changes | {"workers": "ray"}, "cuda", tmp_path / name / "cut")
        for method, expected in whole.items():
            assert cut[method] == pytest.approx(expected, rel=1e-3), method


def test_devices_and_late_clients(small: dict[str, Any], tmp_path: Path) -> None:
    devices = {"speed": {"name": "lognormal", "median": 200.0, "sigma": 1.0}}
    methods = ["FedAvg", "FedBuff", "Recommended"]
    assert_same_on_both(small | {"methods": methods, "devices": devices}, tmp_path)


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_every_attack(attack: str, small: dict[str, Any], tmp_path: Path) -> None:
    options = {"source": 1} if attack == "semantic_backdoor" else {}
    hostile = [{"clients": [0, 1], "attack": [{"name": attack} | options], "from_round": 2}]
    methods = ["FedAvg", "Median", "Recommended"]
    assert_same_on_both(small | {"methods": methods, "hostile": hostile}, tmp_path)


def test_texts(small: dict[str, Any], tmp_path: Path) -> None:
    """Steps of an LSTM are CUDA graphs; embeddings and cuDNN's layers must learn in them as on a CPU."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(30)]
    rows = [
        f"{' '.join(draw.choices(words[10 * label : 20 + 10 * label], k=9))},{label}"
        for label in (0, 1)
        for _ in range(120)
    ]
    (tmp_path / "movie_reviews").mkdir()
    text = "\n".join(["text,label", *rows])
    (tmp_path / "movie_reviews" / "reviews.csv").write_text(text, encoding="utf-8")
    texts = {
        "data": {"name": "movie_reviews", "words": 40, "length": 12},
        "data_dir": str(tmp_path),
        "model": {"name": "lstm", "words": 40, "embedding": 8, "hidden": 8},
        "training": {"epochs": 4, "batch_size": 10, "optimizer": "adam", "learning_rate": 0.01},
        "methods": ["FedAvg"],
    }
    assert_same_on_both(small | texts, tmp_path)
    first, last = losses(small | texts, "cuda", tmp_path / "again")["FedAvg"]
    assert last < first < 0.69


class Circle:
    """Holds itself, so that only the garbage collector frees its graph."""

    def __init__(self, graph: CudaGraph) -> None:
        self.graph = graph
        self.myself = self


def test_a_dropped_graph_does_not_spoil_a_capture() -> None:
    values = torch.zeros(4, device="cuda")
    before = gc.get_threshold()
    gc.collect()
    Circle(CudaGraph(lambda: values.add_(1), [values]))
    garbage = []

    def work() -> None:
        garbage.extend([[index] for index in range(100)])  # enough for a collection
        values.add_(1)

    try:
        gc.set_threshold(1)
        graph = CudaGraph(work, [values])
    finally:
        gc.set_threshold(*before)
    graph()
    assert values.tolist() == [1, 1, 1, 1]
    assert gc.isenabled()


class Reads(nn.Module):
    """A network that looks at its inputs on the CPU, which a CUDA graph does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.flatten(1)
        if float(values.detach().abs().max()) > 1e6:
            values = values / 1e6
        return self.layer(values)


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_a_network_that_no_graph_can_hold(mode: str, small: dict[str, Any], tmp_path: Path) -> None:
    config = small | {"mode": mode, "methods": ["FedAvg"]}
    config.pop("model")
    results = []
    for device in ("cpu", "cuda"):
        given = config | {"device": device, "mode": mode if device == "cuda" else "auto"}
        folder = cw.run(given, tmp_path / device, model=Reads, progress=False).folder
        results.append(list(curve(cw.Run(folder), "loss", "FedAvg").values()))
    assert results[1] == pytest.approx(results[0], rel=1e-3)
    samples = cw.Samples.from_clients([(torch.zeros(4, 64), torch.arange(4) % 2)])
    executor = DeviceExecutor(samples, Reads(), torch.device("cuda"), mode=mode)
    assert executor.mode == "loop"
    assert "its steps cannot be CUDA graphs" in executor.reason


def test_memory_that_runs_out_is_an_error_that_says_what_to_do(
    small: dict[str, Any], tmp_path: Path
) -> None:
    wide = {"name": "mlp", "hidden": [4096, 4096]}  # 68 MB
    config = small | {"device": "cuda", "methods": ["FedAvg", "Recommended"], "model": wide}
    gc.collect()
    torch.cuda.empty_cache()
    try:
        share_gpu(10_000)  # some megabytes
        with pytest.raises(ClientwiseError, match=r"the GPU's memory is exhausted .* resume"):
            cw.run(config, tmp_path / "run", progress=False)
    finally:
        share_gpu(1)
    cw.run(config, tmp_path / "run", progress=False, resume=True)
