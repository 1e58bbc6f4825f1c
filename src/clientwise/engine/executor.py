"""Jobs are executed here: on one device, with the backend that pays, by as many workers as there are cores.

Which backend pays was measured (docs/performance.md): on a GPU everything that can be stacked is, and every step is a
CUDA graph; on a CPU small networks are stacked, and a few clients of networks with convolutions: their layers gain
nothing, but what lies between them is done once. Every core has chunks of its own.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor, nn

from ..core.objective.loss import Loss
from ..core.training import is_elementwise, part_of
from ..core.types import FLOAT_BYTES, Evaluation, LocalTraining, ModelSpec
from ..data.federated import Samples
from ..limits import memory
from ..models.flat import FlatModel, frozen_digest, frozen_parameters
from ..models.modules import count_dropout
from .device import (
    Mode,
    Precision,
    gpu_memory,
    keep_freed_memory,
    refuse_impossible,
    set_precision,
)
from .jobs import (
    CUT_BYTES,
    EvaluateJob,
    EvaluateResult,
    Setup,
    TrainJob,
    TrainResult,
    samples_at_once,
    summarise,
)
from .loop import LoopBackend
from .probes import (
    capture_error,
    draws_from_default_generator,
    largest_layer,
    needs_two_samples,
    with_input_type,
)
from .stacked.backend import StackedBackend, evaluate_by_graph
from .stacked.network import NotStackableError, StackedNetwork

# Of models that a worker of a CPU trains and hands over at once: fewer take more steps of Python, and
# each time all sums are read
AT_ONCE_BYTES = 64 * 2**20
LARGE_BYTES = 8 * 2**20  # of a network whose clients gain nothing from being stacked on a CPU
MAX_CLIENTS = 512  # trained at once; more take more memory and gain nothing
MAX_HANDED = 16  # clients trained one by one whose models are handed over at once
SMALL_PART = 512  # samples to evaluate; fewer are not worth another worker
GPU_SHARE = 0.4  # of its free memory, for the data and again for the models


class Executor(Protocol):
    """Executes an engine's jobs: a `DeviceExecutor`, or a lane's access to one (`scheduler.LaneExecutor`)."""

    device: torch.device
    samples: Samples
    spec: ModelSpec
    workers: int

    @property
    def frozen(self) -> str:
        """The digest of the parameters that do not learn; see `models.flat.frozen_digest`."""
        ...

    def clients_at_once(self, training: LocalTraining, largest: int) -> int:
        """How many clients with at most `largest` samples train together."""
        ...

    def train(self, jobs: Iterable[TrainJob]) -> Iterator[TrainResult | Exception]:
        """The results of the jobs, in order; an exception takes the place of a result."""
        ...

    def evaluate(self, models: Tensor, job: EvaluateJob) -> Evaluation:
        """Every model [c, d] on all samples of the job."""
        ...


def why_alone(training: LocalTraining, loss: Loss) -> str | None:
    """Why clients with these options train one after the other; None where the network decides."""
    if training.sample_clip is not None:
        return "sample_clip clips the gradients of single samples"
    if not is_elementwise(training.optimizer):
        return f"the optimizer {part_of(training.optimizer).name} may combine values of a model"
    if training.transform is not None:
        return f"the transform {training.transform.name} draws for one client at a time"
    if loss.compares_samples:
        return f"the loss {loss.kind} may compare the samples of a batch"
    return None


class _Worker:
    """What one thread has to itself."""

    def __init__(self, flat: FlatModel, setup: Setup) -> None:
        self.loop = LoopBackend(flat, setup)
        self.stacked = StackedBackend(flat, setup)


class DeviceExecutor:
    """One device, one architecture, one set of samples: shared by all methods and seeds of an experiment."""

    def __init__(
        self,
        samples: Samples,
        module: nn.Module,
        device: torch.device,
        *,
        mode: Mode = "auto",
        precision: Precision = "auto",
        workers: int = 0,
    ) -> None:
        refuse_impossible(mode, precision, device)
        self.device = device
        samples = with_input_type(samples, module)
        on_gpu = device.type == "cuda"
        too_large = on_gpu and samples.inputs.nbytes > GPU_SHARE * gpu_memory(device)
        self.samples = samples if too_large else samples.to(device)
        count_dropout(module)
        self.flat = FlatModel(module, device)
        self.spec = self.flat.spec
        self.precision = set_precision(precision, device)
        self._dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self._values_per_sample = 0
        self._evaluates_stacked = False
        self._has_convolutions = True
        if too_large:  # a graph cannot fetch anything from outside the GPU
            self.mode, self.reason = (
                "loop",
                "the data does not fit on the GPU, so batches are copied to it",
            )
        else:
            self.mode, self.reason = self._choose(mode)
        self.workers = 1 if on_gpu else workers or torch.get_num_threads()
        self._at_once: dict[tuple[LocalTraining, int], int] = {}
        draws = on_gpu or (
            self.mode != "stacked" and draws_from_default_generator(self.flat, self.samples)
        )
        # Whether a batch of one sample cannot be trained on
        self.pairs = needs_two_samples(self.flat, self.samples)
        self._setup = Setup(
            self.samples,
            draws=draws,
            pairs=self.pairs,
            use_graphs=self.mode == "graph",
            dtype=self._dtype,
            evaluated=self._samples_at_once(),
        )
        self._own = threading.local()  # in a thread of the pool: its own worker
        # For whichever thread calls where there is no pool: lanes take turns
        self._alone = _Worker(self.flat, self._setup)
        self._pool = ThreadPoolExecutor(
            self.workers,
            initializer=_begin_work,
            initargs=(self._own, self._setup, self.flat.module, device),
        )

    @cached_property
    def frozen(self) -> str:
        """See `Executor`."""
        return frozen_digest(self.flat.module)

    def __str__(self) -> str:
        """How clients are trained and why, for the user."""
        words = {
            "loop": "one client after the other",
            "graph": "one client after the other, each step a CUDA graph",
        }
        cores = f" on each of {self.workers} cores" if self.workers > 1 else ""
        return f"{words.get(self.mode, 'many clients at once')}{cores}, in {self.precision}: {self.reason}"

    def _choose(self, wanted: Mode) -> tuple[Mode, str]:
        """How clients are trained, and why."""
        on_gpu = self.device.type == "cuda"
        if not len(self.samples.inputs):  # a server whose clients are elsewhere
            return "loop", "there are no samples here"
        if wanted == "loop":
            return wanted, "as configured"
        if wanted == "graph":
            return self._one_by_one("as configured")
        try:
            network = StackedNetwork(self.flat.module, self.spec, 2, self.device, self._dtype)
            self._values_per_sample = network.try_out(self.flat, self.samples)
            self._has_convolutions = network.has_convolutions
            self._evaluates_stacked = on_gpu or not self._has_convolutions
        except NotStackableError as error:
            return self._one_by_one(f"the network cannot be stacked: {error}")
        if self.samples.problem.loss.compares_samples:
            return self._one_by_one("the loss compares the samples of a batch")
        if wanted == "stacked":
            return wanted, "as configured"
        if on_gpu:
            return "stacked", "the network can be stacked"
        if self._has_convolutions and not network.is_written_out:
            return "loop", "on a CPU convolutions gain nothing from stacking"
        if self._has_convolutions:
            return "stacked", "the steps of several clients are taken together"
        if FLOAT_BYTES * self.spec.size > LARGE_BYTES:
            return "loop", "the network fills the caches alone"
        return "stacked", "the network is small"

    def _one_by_one(self, why: str) -> tuple[Mode, str]:
        """One client after the other; on a GPU by CUDA graphs, if the network allows them."""
        if self.device.type != "cuda":
            return "loop", why
        error = capture_error(self.flat, self.samples)
        if error is None:
            return "graph", why
        return "loop", f"{why}; its steps cannot be CUDA graphs: {error}"

    def _samples_at_once(self) -> int:
        """How many samples times models are evaluated in one pass."""
        on_gpu = self.device.type == "cuda"
        room = gpu_memory(self.device) if on_gpu else memory()
        if self.samples.problem.is_dense:
            room = CUT_BYTES
        return samples_at_once(largest_layer(self.flat, self.samples), room, on_gpu=on_gpu)

    def clients_at_once(self, training: LocalTraining, largest: int) -> int:
        """How many clients with at most `largest` samples train together."""
        work = training.recipe, largest
        if work not in self._at_once:  # asked once: a GPU takes its time to say what memory it has
            self._at_once[work] = self._count_at_once(training, largest)
        return self._at_once[work]

    def _count_at_once(self, training: LocalTraining, largest: int) -> int:
        if self.mode != "stacked":
            return _clamp(AT_ONCE_BYTES // (FLOAT_BYTES * self.spec.size), MAX_HANDED)
        room = AT_ONCE_BYTES
        most = MAX_CLIENTS
        if self.device.type == "cuda":
            room = int(GPU_SHARE * gpu_memory(self.device))
        elif self._has_convolutions:
            # Clients of several batches: otherwise small ones would compute the padding of large ones
            most = MAX_HANDED if (training.batch_size or largest) < largest else 1
        return _clamp(room // self.bytes_per_client(training, largest), most)

    def bytes_per_client(self, training: LocalTraining, largest: int) -> int:
        """What a client with at most `largest` samples takes while it trains beside others.

        On a CPU: its model and the values of a batch. On a GPU: also its start, gradient, results and
        what an optimizer keeps.
        """
        size = self.spec.size
        batch_values = min(training.batch_size or largest, largest) * self._values_per_sample
        if self.device.type == "cuda":
            return FLOAT_BYTES * (6 * size + 3 * batch_values)
        return FLOAT_BYTES * (size + batch_values)

    def train(self, jobs: Iterable[TrainJob]) -> Iterator[TrainResult | Exception]:
        """See `Executor`; at most one job more than there are workers is under way."""
        if self.workers == 1:
            yield from map(self._train, jobs)
            return
        pending: deque[Future[TrainResult | Exception]] = deque()
        for job in jobs:
            pending.append(self._pool.submit(self._train, job))
            if len(pending) > self.workers:  # no more: memory must not grow with the cohort
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def train_joined(self, jobs: Sequence[TrainJob]) -> list[TrainResult | Exception]:
        """Jobs with the same training options as one batched computation; one by one if that fails."""
        try:
            results = self._train_as_one(jobs)
        except torch.OutOfMemoryError:
            self._take_fewer()
            results = []
        return results or list(self.train(jobs))

    def _train_as_one(self, jobs: Sequence[TrainJob]) -> list[TrainResult | Exception]:
        """The jobs divided among the workers; empty if one fails: the caller trains them one by one.

        All start models or all results once more, as one tensor, would be most of the memory of a run: parts are
        joined when their turn comes, and a job has its own rows of their results.
        """
        total = sum(map(len, jobs))
        largest = max(int(job.sizes.max()) for job in jobs)
        size = max(
            1, min(self.clients_at_once(jobs[0].training, largest), -(-total // self.workers))
        )
        cuts = [_cut_of(jobs, start, min(start + size, total)) for start in range(0, total, size)]
        found: list[list[TrainResult]] = [[] for _ in jobs]  # views, not copies
        failed = False
        for cut, result in zip(cuts, self.train(_joined_cuts(jobs, cuts)), strict=True):
            if isinstance(result, Exception):
                failed = True
                continue
            sizes = [end - first for _, first, end in cut]
            models = torch.split(result.models, sizes)
            losses = torch.split(result.losses, sizes)
            for (index, _, _), *own in zip(cut, models, losses, strict=True):
                found[index].append(TrainResult(*own))
        if failed:
            return []
        return [TrainResult.joined(own) for own in found]

    def _train(self, job: TrainJob) -> TrainResult | Exception:
        worker = self._worker()
        is_stacked = self.mode == "stacked" and why_alone(job.training, job.losses[0]) is None
        backend = worker.stacked if is_stacked else worker.loop
        try:
            return backend.train(job)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError):
                self._take_fewer()
            return error

    def _take_fewer(self) -> None:
        """Train half as many clients at once from now on: other processes use this GPU, too."""
        self._at_once = {work: max(1, count // 2) for work, count in self._at_once.items()}
        torch.cuda.empty_cache()

    def evaluate(self, models: Tensor, job: EvaluateJob) -> Evaluation:
        """See `Executor`; the samples are divided among the workers."""
        models = models.to(self.device)
        if self.device.type == "cuda" and self.mode == "stacked":
            evaluate = partial(self._evaluate, job)
            found = evaluate_by_graph(job, models, evaluate, self._setup.evaluated)
            return summarise([found], job)
        if self.workers == 1:
            return summarise([self._evaluate(job, models)], job)
        part = max(SMALL_PART, -(-len(job.indices) // self.workers))
        results = []
        for indices, targets in job.split(part):
            some = replace(job, indices=indices, targets=targets)
            results.append(self._pool.submit(self._evaluate, some, models))
        return summarise([result.result() for result in results], job)

    def _evaluate(self, job: EvaluateJob, models: Tensor) -> EvaluateResult:
        worker = self._worker()
        stacked = self._evaluates_stacked and (len(models) > 1 or self._has_convolutions)
        backend = worker.stacked if stacked else worker.loop
        return backend.evaluate(models, job)

    def _worker(self) -> _Worker:
        worker: _Worker = getattr(self._own, "worker", self._alone)
        return worker


# Of the job with this number: the clients from the first to the end
Cut = list[tuple[int, int, int]]


def _cut_of(jobs: Sequence[TrainJob], start: int, stop: int) -> Cut:
    """The clients from `start` to `stop` of all jobs, counted one job after the other."""
    cut = []
    before = 0
    for index, job in enumerate(jobs):
        first = max(start - before, 0)
        end = min(stop - before, len(job))
        if first < end:
            cut.append((index, first, end))
        before += len(job)
    return cut


def _joined_cuts(jobs: Sequence[TrainJob], cuts: Sequence[Cut]) -> Iterator[TrainJob]:
    for cut in cuts:
        yield TrainJob.joined([jobs[index].cut(first, end) for index, first, end in cut])


def _clamp(count: int, most: int) -> int:
    return max(1, min(count, most))


def _begin_work(
    own: threading.local, setup: Setup, module: nn.Module, device: torch.device
) -> None:
    """Begin a thread of the pool. It must not refer to the executor, which would then never be freed."""
    keep_freed_memory()
    torch.set_num_threads(1)
    shared = {id(one): one for one in frozen_parameters(module).values()}
    own.worker = _Worker(FlatModel(copy.deepcopy(module, shared), device), setup)
