"""A cohort cut into shards: its clients train on several machines or GPUs, by Ray.

A client belongs to one shard, whose process holds its samples from the start. There it trains, is
measured and is added to sums. Only these sums, the criteria and counts travel, as far as the method can
do without single models; otherwise all models are gathered here.

A shard keeps nothing from call to call: what clients keep between rounds stays here, and travels with
the call. Where a shard's process or machine dies, Ray starts it elsewhere and repeats the call, to the
same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.cohort import fold
from ..core.method import Method, Plan
from ..core.types import Evaluation, Folded, Refusal, ServerState, Task, Updates
from ..data.federated import FederatedData
from ..errors import ClientwiseError
from .jobs import joined_evaluations
from .local import UNCHANGED, Changes, LocalEngine
from .variates import ControlVariates

# Of a machine's cores that a shard asks Ray for: the rest is room for the shard of a machine that dies.
RESERVED = 0.5
# Makes what trains the clients of a shard, in its own process, from their samples and a number of cores.
Build = Callable[[FederatedData, int], tuple[LocalEngine, Method, Plan]]


@dataclass(frozen=True)
class Slot:
    """Where a shard is started: a machine of the cluster, or one of its GPUs."""

    node: str  # Ray's id of the machine
    cores: int
    has_gpu: bool = False


def slots(on_gpu: bool) -> list[Slot]:
    """The machines of the cluster that this process is connected to, or their GPUs."""
    import ray

    nodes: Any = ray.nodes
    found = []
    for node in sorted(nodes(), key=lambda one: str(one["NodeID"])):
        cores = int(node["Resources"].get("CPU", 0))
        gpus = int(node["Resources"].get("GPU", 0))
        if not node["Alive"] or not (gpus if on_gpu else cores):
            continue
        if on_gpu:
            found += [Slot(node["NodeID"], 1, has_gpu=True)] * gpus
        else:
            found.append(Slot(node["NodeID"], cores))
    if not found:
        raise ClientwiseError(f"the Ray cluster has no {'GPU' if on_gpu else 'CPU core'}")
    return found


class Shard:
    """The clients of one shard, in a process of Ray. What it returns follows from the arguments alone.

    Every call names the shard's data in Ray's object store: [reference]. They are read once, and again
    after the process was started anew.
    """

    def __init__(self, build: Build, cores: int) -> None:
        self._build = build
        self._cores = cores
        self._built: tuple[LocalEngine, Method, Plan] | None = None

    def fold(self, stored: Sequence[Any], client_ids: Sequence[int], state: ServerState) -> Folded:
        """See `FoldingEngine`."""
        engine, method, plan = self._ready(stored)
        here = replace(state, model=state.model.to(engine.device))
        return fold(client_ids, here, method, plan, engine)

    def train(
        self,
        stored: Sequence[Any],
        client_ids: Sequence[int],
        model: Tensor,
        task: Task,
        changes: Changes,
        variates: ControlVariates | None,
    ) -> list[Updates]:
        """See `LocalEngine.train_chunks`; all chunks at once."""
        engine, _, _ = self._ready(stored)
        if variates is not None:
            engine.variates = variates
        chunks = engine.train_chunks(client_ids, model.to(engine.device), task, changes)
        return [replace(chunk, models=chunk.models.cpu()) for chunk in chunks]

    def evaluate(
        self, stored: Sequence[Any], client_ids: Sequence[int], models: Tensor
    ) -> Evaluation:
        """See `core.engine.Engine`, without the loss of every sample."""
        engine, _, _ = self._ready(stored)
        return replace(engine.evaluate(client_ids, models.to(engine.device)), sample_losses=None)

    def _ready(self, stored: Sequence[Any]) -> tuple[LocalEngine, Method, Plan]:
        if self._built is None:
            self._built = self._build(self._read(stored), self._cores)
            engine, _, _ = self._built
            engine.is_part = True
        return self._built

    def _read(self, stored: Sequence[Any]) -> FederatedData:
        import ray

        data: FederatedData
        (data,) = ray.get(list(stored))
        return data


class Shards:
    """The shards of the clients of one seed, in processes of Ray: client k belongs to shard k mod S.

    Args:
        data: the clients' samples, which are sent to the shards once.
        build: makes the engine of a shard, its method and its plan.
        where: a slot for each shard.
    """

    def __init__(self, data: FederatedData, build: Build, where: Sequence[Slot]) -> None:
        import ray

        self._actors = []
        self._stored = []  # the shards' data in Ray's object store, as long as this object is there
        data = data.holdings_to(torch.device("cpu"))
        for index, slot in enumerate(where):
            own = data.only(range(index, data.num_clients, len(where)))
            self._stored.append(ray.put(own))
            self._actors.append(_start(build, slot))

    def close(self) -> None:
        """End the shards' processes."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def ask(
        self,
        what: str,
        client_ids: Sequence[int],
        shared: Sequence[Any],
        own: Callable[[Sequence[int]], Sequence[Any]] = lambda _: (),
        meanwhile: Callable[[], None] | None = None,
    ) -> list[tuple[list[int], Any]]:
        """What the shards answer about their own of these clients.

        Args:
            what: the method of `Shard` to call.
            client_ids: the clients.
            shared: arguments for all shards.
            own: more arguments, of some clients alone.
            meanwhile: called once the shards work.

        Returns:
            (clients, answer) of every shard that has some of the clients, in the shards' order.
        """
        import ray

        sent = [ray.put(argument) for argument in shared]
        asked = []
        for index, clients in divided(client_ids, len(self._actors)):
            call = getattr(self._actors[index], what)
            stored = [self._stored[index]]
            asked.append((clients, call.remote(stored, clients, *sent, *own(clients))))
        if meanwhile:
            meanwhile()
        answered = answers([answer for _, answer in asked])
        return [(clients, answer) for (clients, _), answer in zip(asked, answered, strict=True)]


def answers(asked: Sequence[Any]) -> list[Any]:
    """What processes of Ray answer. Errors that the user can solve are raised here as they were there."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return list(ray.get(list(asked)))
    except RayTaskError as error:
        if isinstance(error.cause, ClientwiseError):
            raise ClientwiseError(f"in a process of Ray: {error.cause}") from None
        raise
    except RayActorError as error:
        why = str(error).strip().splitlines()[-1]
        raise ClientwiseError(
            f"a process of Ray has ended ({why}); continue with --resume (resume=True in Python)"
        ) from None


def divided(client_ids: Sequence[int], shards: int) -> list[tuple[int, list[int]]]:
    """The shards that have some of these clients: (index, its clients)."""
    own: list[list[int]] = [[] for _ in range(shards)]
    for client in client_ids:
        own[client % shards].append(client)
    return [(index, clients) for index, clients in enumerate(own) if clients]


class ShardedEngine(LocalEngine):
    """The clients of one seed, trained and evaluated in shards.

    This process holds their samples as well. It does the server's own work, and keeps what clients
    keep between rounds.

    Args:
        data: see `LocalEngine`.
        module: see `LocalEngine`.
        shards: where the clients train.
        options: of `LocalEngine`.
    """

    def __init__(
        self, data: FederatedData, module: nn.Module, *, shards: Shards, **options: Any
    ) -> None:
        super().__init__(data, module, **options)
        self._shards = shards

    def fold(self, client_ids: Sequence[int], state: ServerState) -> list[Folded]:
        """See `FoldingEngine`: a sum over clients is the sum over shards."""
        model = state.model.cpu()
        needed = ServerState(state.round_num, model, state.loss, priority=state.priority)
        parts = self._shards.ask("fold", client_ids, [needed], meanwhile=self.idle_work)
        folded = [part for _, part in parts]
        if not any(part.client_ids for part in folded):
            _refuse_if_none_trained([refusal for part in folded for refusal in part.refusals])
        return folded

    def train_chunks(
        self,
        client_ids: Sequence[int],
        model: Tensor,
        task: Task,
        changes: Changes = UNCHANGED,
    ) -> Iterator[Updates]:
        """See `LocalEngine`; all models travel, for methods and engines that must see single models."""
        self._begin_round(task)

        def own(clients: Sequence[int]) -> Sequence[Any]:
            variates = self.variates.of(clients) if task.training.control_variates else None
            return changes.of(clients), variates

        parts = self._shards.ask("train", client_ids, [model.cpu(), task], own, self.idle_work)
        chunks = [chunk for _, updates in parts for chunk in updates]
        trained = [chunk for chunk in chunks if chunk.client_ids]
        if trained:
            gathered = Updates.joined(trained).by_client()
            yield replace(gathered, models=gathered.models.to(self.device))
        failures = [failure for chunk in chunks for failure in chunk.failures]
        if failures:
            if not trained:
                _refuse_if_none_trained(failures)
            yield Updates.failed(sorted(failures, key=lambda one: one.client_id), model)

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`: every shard evaluates its own clients, and this process a single one."""
        if len(client_ids) == 1:
            return super().evaluate(client_ids, models)
        parts = self._shards.ask("evaluate", client_ids, [models.cpu()])
        rank = {client: position for position, client in enumerate(client_ids)}
        ranks = torch.tensor([rank[client] for clients, _ in parts for client in clients])
        return joined_evaluations([evaluation for _, evaluation in parts], ranks)


def _start(build: Build, slot: Slot) -> Any:
    """The actor of a shard. Ray starts it again, and repeats its calls, wherever it dies."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor: Any = ray.remote(Shard)
    return actor.options(
        num_cpus=RESERVED * slot.cores,
        num_gpus=int(slot.has_gpu),
        max_restarts=-1,
        max_task_retries=-1,
        # Not hard: another machine takes the shard where this one is gone
        scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=True),
    ).remote(build, slot.cores)


def _refuse_if_none_trained(refusals: Sequence[Refusal]) -> None:
    """ClientwiseError where no client has sent a model: then no single client is at fault."""
    if refusals and not any(refusal.was_sent for refusal in refusals):
        raise ClientwiseError(f"no client could train. The last error: {refusals[-1].reason}")
