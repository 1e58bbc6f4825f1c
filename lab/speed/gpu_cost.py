"""What a round of `Recommended` costs on a GPU beside FedAvg and AdaFed, and what limits it; two minutes on an H200.

python lab/speed/gpu_cost.py [--device cuda] [--seconds 110] [--quick] [--out lab/results/speed/gpu_cost.json]

In this order, as far as the seconds suffice; the file is written after every part, and a part that fails says why:

- rates: matrix products in TF32 and bf16, and copies, as this GPU does them.
- rounds: median milliseconds of a round of each method on W1, W3 and W4 with 200 samples of the server. The methods
  take turns in one process. FLOPs are counted from the shapes of the layers; "of tf32" is their share of the measured
  rate.
  "Weights" is the time in which the weights of all clients are read twice and written once in every step.
- memory: the first case of lab/speed/gpu_memory.py.
- profile: kernels, launches and waits of a round, and the share of it in which the GPU is busy.
- phases: milliseconds of the parts of a round of `Recommended`, with a wait for the GPU before and after each.

`--quick --device cpu` does the same with small works, to try it out.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import clientwise as cw  # before PyTorch, whose allocator it sets (docs/performance.md, "Kept memory")

# isort: split
import tomli_w
import torch
from torch import Tensor, nn

import gpu_memory
from clientwise.core import candidates, cohort, round
from clientwise.core.aggregation.server_step import BestOf
from clientwise.core.evaluation import Evaluations
from clientwise.core.evidence import significance
from clientwise.data.federated import FederatedData, Holdings
from clientwise.engine.local import LocalEngine
from clientwise.experiment.build.engine import build_module
from ours import config, federated, seconds_per_round
from works import WORKS, Work

METHODS = ("FedAvg", "AdaFed", "Recommended")
WARMUP = 5  # rounds in which graphs are recorded
PROFILED = 3  # rounds
RUNTIME = {  # what the CPU asks of the GPU, by the names in a trace
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    "graphs": ("cudaGraphLaunch",),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy"),
    "waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
}
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
PHASES: list[tuple[Any, str, str]] = [
    (cohort.Cohort, "gather", "training"),
    (round, "aggregate_cohort", "aggregate"),
    (cohort.Cohort, "updates", "updates"),
    (significance.Significance, "__call__", "evidence"),
    (significance.Significance, "_harm", "held-out evidence"),
    (LocalEngine, "server_gradients", "gradients"),
    (significance, "sketch", "sketch"),
    (significance, "look_back", "look back"),
    (cohort.Cohort, "judge", "evaluate"),
    (round, "apply_rule", "clip and mean"),
    (candidates, "take_server_step", "server steps"),
    (round, "tune_and_choose", "tune and choose"),
    (LocalEngine, "train_server", "tuning steps"),
    (Evaluations, "__init__", "evaluate the model"),
]


SAMPLES = 200  # that the server weighs by


def with_server_set(work: Work) -> FederatedData:
    """The work's data; the server weighs by the first samples."""
    data = federated(work)
    held = (data.train.indices[:SAMPLES], data.train.targets[:SAMPLES])
    return replace(data, weigh=Holdings.of([held]))


def works(quick: bool) -> list[Work]:
    """W3, W1 and W4, or small ones of the same kinds."""
    found = [WORKS[name] for name in ("W3", "W1", "W4")]
    if not quick:
        return found
    small = [replace(work, clients=20, cohort=4, samples=20, epochs=1) for work in found]
    return [work if work.layers else replace(work, shape=(1, 4, 4)) for work in small]


def wait(device: str) -> None:
    """Until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_seconds(work: Callable[[], object], device: str, repeats: int = 5) -> float:
    """Of the fastest of a few calls, after one that is not counted."""
    took = []
    for _ in range(repeats + 1):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        took.append(time.perf_counter() - began)
    return min(took[1:])


def rates(device: str, quick: bool) -> dict[str, float]:
    """TFLOP/s of products and GB/s of copies, read and written bytes counted."""
    size = 256 if quick else 8192
    found = {}
    torch.backends.cuda.matmul.allow_tf32 = True
    for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16)):
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        seconds = best_seconds(functools.partial(torch.mm, left, right), device)
        found[f"{name}, TFLOP/s"] = 2 * size**3 / seconds / 1e12
    values = torch.zeros(2**20 if quick else 2**28, device=device)
    copy = torch.empty_like(values)
    seconds = best_seconds(functools.partial(copy.copy_, values), device)
    return found | {"copy, GB/s": 2 * values.nbytes / seconds / 1e9}


def flops_per_sample(module: nn.Module, inputs: Tensor) -> tuple[int, int]:
    """Of a forward pass, and of a step of training: the first layer needs no gradient by its inputs."""
    forward: list[int] = []

    def count(layer: nn.Module, given: object, outputs: Tensor) -> None:
        weights = layer.weight
        assert isinstance(weights, Tensor)
        positions = outputs[0].numel() // weights.shape[0]
        forward.append(2 * weights.numel() * positions)

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(inputs)
    return sum(forward), 3 * sum(forward) - forward[0]


def count_work(work: Work, data: FederatedData) -> dict[str, Any]:
    """FLOPs of a round of each method, and the bytes of weights that local training reads and writes."""
    module = build_module(cw.load(config(work, 1)), data.samples, 1)
    forward, training = flops_per_sample(module, data.samples.batch(torch.arange(1)))
    local = work.cohort * work.samples * work.epochs * training
    flops = {"FedAvg": local, "AdaFed": local + work.cohort * SAMPLES * forward}
    (method,) = cw.load(config(work, 1, methods=["Recommended"])).build_methods()
    assert method.fine_tune is not None
    assert isinstance(method.server_step, BestOf)
    tried = len(method.server_step.steps)
    tuned = tried * method.fine_tune.epochs * SAMPLES * training
    evidence = SAMPLES * training  # a gradient of every group of samples
    judged = tried * round.LINE_SEARCH_POINTS * SAMPLES * forward
    flops["Recommended"] = local + evidence + judged + tuned
    size = sum(parameter.numel() for parameter in module.parameters())
    steps = work.epochs * -(-work.samples // work.batch)
    return {
        "parameters": size,
        "GFLOP": {name: count / 1e9 for name, count in flops.items()},
        "weights, GB": 3 * 4 * size * work.cohort * steps / 1e9,
    }


class Measured:
    """The results so far, and the seconds that are left."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.began = time.perf_counter()
        self.results: dict[str, Any] = {"machine": _machine(given.device), "left out": {}}

    @contextmanager
    def part(self, name: str, needs: float) -> Iterator[bool]:
        """Gives whether there is time for a part that needs so many seconds. An error ends the part alone."""
        left = self.given.seconds - (time.perf_counter() - self.began)
        if left < needs:
            self.results["left out"][name] = f"{left:.0f} s were left"
        try:
            yield left >= needs
        except Exception:
            self.results["left out"][name] = traceback.format_exc(limit=-3)
            print(f"{name} failed:\n{self.results['left out'][name]}", flush=True)
        self.write()

    def write(self) -> None:
        """To the file, as far as it is known."""
        self.results["seconds"] = time.perf_counter() - self.began
        path: Path = self.given.out
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_shortened(self.results), indent=2) + "\n", encoding="utf-8")


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Bench:
    """All parts, on the same data."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.results = measured.results
        self.device: str = measured.given.device
        self.quick: bool = measured.given.quick
        self.timed = 2 if self.quick else 15
        self.warmup = 2 if self.quick else WARMUP
        self.works = works(self.quick)
        self.data: dict[str, FederatedData] = {}
        self.took: dict[str, dict[str, list[list[float]]]] = {}
        self.of_work: dict[str, Any] = self.results.setdefault("works", {})

    def data_of(self, work: Work) -> FederatedData:
        """Made once."""
        if work.name not in self.data:
            self.data[work.name] = with_server_set(work)
        return self.data[work.name]

    def run(self, work: Work, method: str, rounds: int, **options: Any) -> list[float]:
        """Seconds of the rounds of one run, in the GPU's usual precision."""
        options |= {"data": self.data_of(work), "device": self.device, "methods": [method]}
        return seconds_per_round(work, rounds, self.warmup, **options)

    def turn(self, work: Work) -> None:
        """One run of every method."""
        took = self.took.setdefault(work.name, {name: [] for name in METHODS})
        for method in METHODS:
            seconds = self.run(work, method, self.timed)
            took[method].append([1000 * one for one in seconds])
        found = self.of_work.setdefault(work.name, {})
        if "GFLOP" not in found:
            found |= count_work(work, self.data_of(work))
        every = {name: [one for turn in turns for one in turn] for name, turns in took.items()}
        medians = {name: statistics.median(one) for name, one in every.items()}
        found["ms"] = medians
        found["ms by turn"] = {
            name: [statistics.median(turn) for turn in turns] for name, turns in took.items()
        }
        found["Recommended / AdaFed"] = medians["Recommended"] / medians["AdaFed"]
        found["Recommended / FedAvg"] = medians["Recommended"] / medians["FedAvg"]
        if "rates" in self.results:
            self._compare(found)
        print(work.name, json.dumps(_shortened(found)), flush=True)

    def _compare(self, found: dict[str, Any]) -> None:
        """With what the device can do."""
        rate = self.results["rates"]
        for name in ("tf32", "bf16"):
            found[f"of {name}"] = {
                method: found["GFLOP"][method] / ms / rate[f"{name}, TFLOP/s"]
                for method, ms in found["ms"].items()
            }
        found["weights, ms"] = 1000 * found["weights, GB"] / rate["copy, GB/s"]

    def profile(self, work: Work, method: str) -> None:
        """Kernels of a round and how long they take, by a trace of some rounds."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities)
        ended = 0

        def note(*_: object) -> None:
            nonlocal ended
            ended += 1
            wait(self.device)
            if ended == self.warmup:
                profiler.start()
            if ended == self.warmup + PROFILED:
                profiler.stop()

        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            settings = config(
                work, self.warmup + PROFILED + 1, device=self.device, methods=[method]
            )
            cw.run(settings, Path(folder) / "run", data=self.data_of(work), on_round=note)
            profiler.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        found = summary(events)
        median = self.of_work.get(work.name, {}).get("ms", {}).get(method)
        if median and found["busy, ms"]:
            found["busy"] = found["busy, ms"] / median
        self.of_work.setdefault(work.name, {}).setdefault("profile", {})[method] = found
        shown = {name: value for name, value in found.items() if name != "longest, ms"}
        print(work.name, method, json.dumps(_shortened(shown)), flush=True)

    def phases(self, work: Work) -> None:
        """Mean milliseconds of the parts of a round; some are within others, and some are called several times."""
        took: dict[str, list[float]] = {}
        rounds = self.timed
        with _timed(took, self.device):
            self.run(work, "Recommended", rounds)
        # The last rounds: graphs are recorded by then
        found = {}
        for name, seconds in took.items():
            each = len(seconds) // (rounds + self.warmup + 1) or 1
            late = seconds[-each * rounds :]
            found[name] = 1000 * sum(late) / rounds
        self.of_work.setdefault(work.name, {})["phases, ms"] = found
        print(work.name, "phases", json.dumps(_shortened(found)), flush=True)

    def memory(self, limit: float) -> None:
        """14 methods × 5 seeds in another process, and what PyTorch says of it there."""
        settings: dict[str, Any] = gpu_memory.ONE_PROCESS | {"device": self.device}
        if self.quick:
            settings |= {"rounds": 2, "seeds": [1], "methods": ["FedAvg", "Recommended"]}
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "memory.toml"
            file.write_text(tomli_w.dumps(settings), encoding="utf-8")
            told = Path(folder) / "told.json"
            command = [sys.executable, __file__, "--child", str(file), "--out", str(told)]
            used = gpu_memory.used if self.device == "cuda" else lambda: 0
            before, most, began = used(), 0, time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    most = max(most, used() - before)
                    if time.perf_counter() - began > limit:
                        process.kill()
                    time.sleep(0.02)
            found: dict[str, Any] = {"GB": most / 1e9, "seconds": time.perf_counter() - began}
            if process.returncode:
                raise RuntimeError(f"status {process.returncode} after {found['seconds']:.0f} s")
            found |= json.loads(told.read_text(encoding="utf-8"))
            if "reserved, GB" in found:  # the driver's context, handles and graphs
                found["beside PyTorch, GB"] = found["GB"] - found["reserved, GB"]
        self.results["memory"] = found
        print("memory", json.dumps(_shortened(found)), flush=True)


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a trace of some rounds, for one of them."""
    runtime: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    operations = 0
    for event in events:
        if event.get("ph") != "X":
            continue
        kind, name = event.get("cat"), str(event.get("name"))
        operations += kind == "cpu_op"
        for what, names in RUNTIME.items():
            runtime[what] += name in names
        if kind in ON_GPU:
            spans.append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
            kernels[name[:60]] += int(1000 * float(event["dur"]))  # nanoseconds
    longest = {name: nanoseconds / 1e6 / PROFILED for name, nanoseconds in kernels.most_common(15)}
    return {
        "kernels": len(spans) / PROFILED,
        **{what: runtime[what] / PROFILED for what in RUNTIME},
        "operations of PyTorch": operations / PROFILED,
        "busy, ms": covered(spans) / 1000 / PROFILED,
        "longest, ms": longest,
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what spans cover together.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total = 0.0
    end = float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


@contextmanager
def _timed(took: dict[str, list[float]], device: str) -> Iterator[None]:
    """Note the seconds of every call of the functions of `PHASES`."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in PHASES]

    def noted(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            wait(device)
            began = time.perf_counter()
            result = function(*args, **options)
            wait(device)
            took.setdefault(phase, []).append(time.perf_counter() - began)
            return result

        return call

    try:
        for (owner, name, function), (_, _, phase) in zip(before, PHASES, strict=True):
            setattr(owner, name, noted(function, phase))
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def child(file: Path, out: Path) -> None:
    """A run, and what PyTorch's allocator took of the GPU for it."""
    told: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cw.run(file, Path(folder) / "run", progress=False)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        told["allocated, GB"] = torch.cuda.max_memory_allocated() / 1e9
        told["reserved, GB"] = torch.cuda.max_memory_reserved() / 1e9
    out.write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    """All parts, the most important ones first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/gpu_cost.json"))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.out)
        return
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here; use --device cpu --quick to try it out")
    measured = Measured(given)
    bench = Bench(measured)
    with measured.part("rates", 0):
        measured.results["rates"] = rates(given.device, given.quick)
        print("rates", json.dumps(_shortened(measured.results["rates"])), flush=True)
    for work in bench.works:
        with measured.part(f"{work.name}, first turn", 5) as is_time:
            if is_time:
                bench.turn(work)
    with measured.part("memory", 20) as is_time:
        if is_time:
            left = given.seconds - (time.perf_counter() - measured.began)
            bench.memory(min(60.0, left))
    for method in ("Recommended", "AdaFed"):
        for work in bench.works:
            with measured.part(f"{work.name}, profile of {method}", 6) as is_time:
                if is_time:
                    bench.profile(work, method)
    for work in bench.works:
        with measured.part(f"{work.name}, phases", 5) as is_time:
            if is_time:
                bench.phases(work)
    for work in bench.works:
        with measured.part(f"{work.name}, second turn", 12) as is_time:
            if is_time:
                bench.turn(work)
    measured.write()
    print(f"{given.out}: {measured.results['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
