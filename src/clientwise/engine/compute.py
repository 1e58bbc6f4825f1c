"""Where the arithmetic happens: trains and evaluates models on one device, as many at once as pays.

Which way pays was measured (docs/performance.md): on a GPU everything that can be stacked is, and every step is
recorded; on a CPU small layers without convolutions are stacked, in chunks that fit its caches, one chunk per core.
"""

from __future__ import annotations

import copy
import ctypes
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ..core.types import Evaluation, LocalTraining, ModelSpec
from ..data.federated import Samples
from ..errors import ClientwiseError
from ..models.dropout import count_dropout
from ..models.flat import FlatModel
from .evaluation import Answers, Exam, answer_again, answer_one_by_one, answer_together, graded
from .stacked import NotStackableError, StackedNetwork
from .training import Bundle, OneByOne, Together, Trained

Mode = Literal["auto", "loop", "graph", "stacked"]
Precision = Literal["auto", "float32", "tf32", "bf16"]

CACHE_BYTES = 16 * 2**20  # of models side by side on one core
HANDED_BYTES = 64 * 2**20  # of models trained one by one that a worker hands over at once: each time all sums are read
MOST_TOGETHER = 1024  # clients
MOST_ANSWERING = 32  # models evaluated at once
MOST_NETWORKS = 4  # sizes of stacked networks kept, with their recordings
SMALL_EXAM = 512  # samples; fewer are not worth another worker
GPU_SHARE = 0.4  # of its free memory, for the data and again for the models


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClientwiseError(f"device: {name!r} was asked for, but PyTorch sees no GPU here; use 'cpu' or 'auto'")
    if device.index and device.index != torch.cuda.current_device():  # recordings and kernels are of the current one
        raise ClientwiseError(
            f"device: {name!r} is not the GPU this process begins with; "
            f"set CUDA_VISIBLE_DEVICES={device.index} and use 'cuda'"
        )
    return device


def refuse_impossible(mode: Mode, precision: Precision, device: torch.device) -> None:
    """What a CPU cannot do."""
    if device.type == "cuda":
        return
    if mode == "graph":
        raise ClientwiseError("mode: 'graph' records steps of a GPU, and this is a CPU; use 'auto' or 'loop'")
    if precision == "tf32":
        raise ClientwiseError("precision: 'tf32' is a GPU's, and this is a CPU; use 'auto', 'float32' or 'bf16'")


class Computing(Protocol):
    """What an engine asks for: `Compute` itself, or a lane's seat at a meeting."""

    device: torch.device
    samples: Samples
    spec: ModelSpec
    workers: int

    def at_once(self, training: LocalTraining, largest: int) -> int:
        """How many clients of at most `largest` samples train together."""
        ...

    def train(self, bundles: Iterable[Bundle]) -> Iterator[Trained | Exception]:
        """The bundles in order; what goes wrong comes instead of a result."""
        ...

    def evaluate(self, models: Tensor, exam: Exam) -> Evaluation:
        """Every model [c, d] on all samples of the exam."""
        ...


class Compute:
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
        on_gpu = device.type == "cuda"
        too_large = on_gpu and samples.inputs.nbytes > GPU_SHARE * torch.cuda.mem_get_info(device)[0]
        self.samples = samples if too_large else samples.to(device)
        count_dropout(module)
        self.flat = FlatModel(module, device)
        self.spec = self.flat.spec
        self.precision = _set_precision(precision, device)
        self._dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self._values_per_sample, self._answers_stacked, self._has_convolutions = 0, False, True
        if too_large:  # recorded work cannot fetch anything from outside the GPU
            self.mode, self.reason = "loop", "the data do not fit on the GPU: batches travel"
        else:
            self.mode, self.reason = self._choose(mode)
        self.workers = 1 if on_gpu else workers or torch.get_num_threads()
        self._at_once: dict[tuple[LocalTraining, int], int] = {}
        self._own = threading.local()  # in a thread of the pool: its own networks
        self._alone = _Worker(self.flat)  # for whichever thread calls where there is no pool: lanes take turns
        self._pool = ThreadPoolExecutor(self.workers, initializer=self._begin_work)

    def __str__(self) -> str:
        """What a person is told."""
        words = {"loop": "one client after the other", "graph": "one client after the other, each step recorded"}
        cores = f" on each of {self.workers} cores" if self.workers > 1 else ""
        return f"{words.get(self.mode, 'many clients at once')}{cores}, in {self.precision}: {self.reason}"

    def _choose(self, wanted: Mode) -> tuple[Mode, str]:
        """How clients are trained, and why."""
        on_gpu = self.device.type == "cuda"
        if wanted in ("loop", "graph"):
            return wanted, "as asked for"
        one_by_one: Mode = "graph" if on_gpu else "loop"
        if not len(self.samples.inputs):  # a server whose clients are elsewhere
            return one_by_one, "there are no samples here"
        try:
            network = StackedNetwork(self.flat.module, self.spec, 2, self.device, self._dtype)
            self._values_per_sample = network.try_out(self.flat, self.samples)
            self._has_convolutions = network.has_convolutions
            self._answers_stacked = on_gpu or not self._has_convolutions
        except NotStackableError as error:
            return one_by_one, f"the network cannot be stacked: {error}"
        if wanted == "stacked":
            return wanted, "as asked for"
        if on_gpu:
            return "stacked", "the network can be stacked"
        if self._has_convolutions:
            return "loop", "on a CPU convolutions gain nothing from stacking"
        if 4 * self.spec.size > CACHE_BYTES / 2:
            return "loop", "the network fills the caches alone"
        return "stacked", "the network is small"

    def at_once(self, training: LocalTraining, largest: int) -> int:
        """How many clients of at most `largest` samples train together."""
        if (training, largest) not in self._at_once:  # asked once: a GPU takes its time to say what memory it has
            self._at_once[training, largest] = self._count_at_once(training, largest)
        return self._at_once[training, largest]

    def _count_at_once(self, training: LocalTraining, largest: int) -> int:
        samples = min(training.batch_size or largest, largest)
        if self.mode != "stacked":
            return max(1, min(16, HANDED_BYTES // (4 * self.spec.size)))
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
            each = 4 * (6 * self.spec.size + 3 * samples * self._values_per_sample)
            return int(max(1, min(MOST_TOGETHER, GPU_SHARE * free // each)))
        return max(1, min(MOST_TOGETHER, CACHE_BYTES // (4 * (self.spec.size + samples * self._values_per_sample))))

    def train(self, bundles: Iterable[Bundle]) -> Iterator[Trained | Exception]:
        """The bundles in order, a few at a time; what goes wrong comes instead of a result."""
        if self.workers == 1:
            yield from map(self._train, bundles)
            return
        pending: deque[Future[Trained | Exception]] = deque()
        for bundle in bundles:
            pending.append(self._pool.submit(self._train, bundle))
            if len(pending) > self.workers:  # no more: memory must not grow with the cohort
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def train_joined(self, bundles: Sequence[Bundle]) -> list[Trained | Exception]:
        """Bundles that train alike, as one batched computation; one after the other where that fails."""
        try:
            results = self._train_as_one(bundles)
        except torch.OutOfMemoryError:
            self._take_fewer()
            results = []
        return results or list(self.train(bundles))

    def _train_as_one(self, bundles: Sequence[Bundle]) -> list[Trained | Exception]:
        """Every worker takes a part; nothing where one of them fails: whose it is shows when they train apart."""
        joined = Bundle.joined(bundles)
        largest = int(joined.sizes.max())
        size = max(1, min(self.at_once(joined.training, largest), -(-len(joined) // self.workers)))
        parts = [joined.select(rows) for rows in torch.split(torch.arange(len(joined)), size)]
        results = list(self.train(parts if len(parts) > 1 else [joined]))
        if any(isinstance(result, Exception) for result in results):
            return []
        models, losses = (torch.cat(part) for part in zip(*(result for result in results), strict=True))
        sizes = [len(bundle) for bundle in bundles]
        return list(zip(torch.split(models, sizes), torch.split(losses, sizes), strict=True))

    def _train(self, bundle: Bundle) -> Trained | Exception:
        try:
            return self._trainer(len(bundle)).train(bundle)
        except Exception as error:
            self._worker().together.clear()  # what lies where its steps read may be half of the old and half of the new
            if isinstance(error, torch.OutOfMemoryError):
                self._take_fewer()
            return error

    def _take_fewer(self) -> None:
        """Others have come to use this GPU since its memory was counted: half as many clients at once from now on."""
        self._at_once = {work: max(1, count // 2) for work, count in self._at_once.items()}
        torch.cuda.empty_cache()

    def _trainer(self, size: int) -> OneByOne | Together:
        """This worker's trainer: networks and recordings are kept from round to round."""
        own, record = self._worker(), self.device.type == "cuda"
        if self.mode != "stacked":
            if own.one_by_one is None:
                own.one_by_one = OneByOne(own.flat, self.samples, record=self.mode == "graph", dtype=self._dtype)
            return own.one_by_one
        if not record:  # a larger one serves as well
            size = max(size, *own.together, 1)
        if size not in own.together:
            while len(own.together) >= MOST_NETWORKS:
                own.together.pop(next(iter(own.together)))
            own.together[size] = Together(self._stack(size), self.samples, record=record)
        return own.together[size]

    def _stack(self, size: int) -> StackedNetwork:
        return StackedNetwork(self._worker().flat.module, self.spec, size, self.device, self._dtype)

    def _begin_work(self) -> None:
        """In every new thread of the pool."""
        _keep_freed_memory()
        torch.set_num_threads(1)
        self._own.worker = _Worker(FlatModel(copy.deepcopy(self.flat.module), self.device))

    def _worker(self) -> _Worker:
        worker: _Worker = getattr(self._own, "worker", self._alone)
        return worker

    def evaluate(self, models: Tensor, exam: Exam) -> Evaluation:
        """Every model [c, d] on all samples of the exam; the samples are shared among the workers."""
        models = models.to(self.device)

        def answer(models: Tensor) -> Answers:
            return self._answer(models, exam.numbers, exam.targets)

        if self.device.type == "cuda" and self.mode == "stacked":
            return graded([answer_again(exam, models, answer)], exam)
        if self.workers == 1:
            return graded([answer(models)], exam)
        part = max(SMALL_EXAM, -(-len(exam.numbers) // self.workers))
        parts = zip(torch.split(exam.numbers, part), torch.split(exam.targets, part), strict=True)
        answers = [self._pool.submit(self._answer, models, *some) for some in parts]
        return graded([answer.result() for answer in answers], exam)

    def _answer(self, models: Tensor, numbers: Tensor, targets: Tensor) -> Answers:
        worker = self._worker()
        if not self._answers_stacked or (len(models) == 1 and not self._has_convolutions):
            return answer_one_by_one(worker.flat, models, self.samples, numbers, targets, self._dtype)
        if worker.answering is None:
            worker.answering = self._stack(MOST_ANSWERING)
        return answer_together(worker.answering, models, self.samples, numbers, targets)


@dataclass
class _Worker:
    """What one worker has to itself."""

    flat: FlatModel
    one_by_one: OneByOne | None = None
    together: dict[int, Together] = field(default_factory=dict)
    answering: StackedNetwork | None = None


@contextmanager
def threads_for(num_parameters: int) -> Iterator[None]:
    """One thread for small networks, whose layers are too small to share; PyTorch's own choice for the others.

    On a busy machine threads that wait for each other make small layers many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_parameters < 500_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _keep_freed_memory() -> None:
    """Blocks of megabytes stay with the process when they are freed, as far as Linux's usual allocator can be told so.

    To give them back and fetch them anew, page by page, takes a tenth of a round. Who sets the allocator's own
    variables (MALLOC_..., GLIBC_TUNABLES) is left alone.
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if sys.platform == "linux" and not told and hasattr(allocator := ctypes.CDLL(None), "mallopt"):
        allocator.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: smaller blocks are not fetched one by one
        allocator.mallopt(-1, 2**28)  # M_TRIM_THRESHOLD: so much may lie idle, per thread


def _set_precision(wanted: Precision, device: torch.device) -> Precision:
    """What products are computed in: all of float32 on a CPU, its faster form TF32 on a GPU, unless asked otherwise."""
    # Two runs of one config must agree to the bit, or a resumed one would not be the same run.
    torch.backends.cudnn.deterministic = True
    precision: Precision = wanted if wanted != "auto" else "tf32" if device.type == "cuda" else "float32"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    elif platform.machine() in ("aarch64", "arm64"):
        # Measured: for layers of this size oneDNN costs more than it gains on ARM, and it ignores the thread setting.
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return precision
