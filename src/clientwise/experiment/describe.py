"""What an experiment would run, in a few lines."""

from __future__ import annotations

import statistics

from ..data.federated import FederatedData
from ..data.summary import summarise
from ..engine.device import pick_device
from .build import build_data, build_executor, build_plan
from .schema import Experiment
from .validation import validate


def describe(experiment: Experiment, own_data: FederatedData | None = None) -> list[str]:
    """What an experiment would run, found out by building its first seed; `own_data` as for `runner.run`."""
    samples = validate(experiment, own_data)
    seed = experiment.seeds[0]
    data, hostile = build_data(experiment, samples, seed, own_data)
    sizes = data.train.sizes
    cohort = build_plan(experiment, data.num_clients, seed).cohort_size
    parts = ((data.weigh, "weigh by"), (data.report, "report on"))
    server = [f"{len(part.indices):,} samples to {verb}" for part, verb in parts if part]
    unused = summarise(data).unused
    nobody = f"; {unused:,} of them nobody holds (who has fewer than partition.minimum is left out)" if unused else ""
    device = pick_device(experiment.device)
    executor = build_executor(experiment, data.samples, device, to_try=True)
    work = {"method": len(experiment.methods), "seed": len(experiment.seeds), "round": experiment.rounds}
    here = bool(sizes.any())  # or this is the server of a deployment
    source = experiment.data.name if experiment.data else "the members' files" if here else "the server's file"
    held = f"{sizes.min()} to {sizes.max()} training samples each" if here else "data of their own, elsewhere"
    return [
        f"data        {source}: {len(samples.targets):,} samples, {samples.problem.kind}{nobody}",
        f"clients     {data.num_clients} with {held}, {cohort} in a round, {len(hostile)} hostile",
        *_devices(experiment, data, executor.spec.size),
        f"server set  {', '.join(server) or 'none'}"
        + ("; the cohort judges" if experiment.server_set.source == "clients" else ""),
        f"model       {experiment.model_name}: {executor.spec.num_parameters:,} parameters",
        f"device      {device}: {executor}",
        f"methods     {', '.join(method.name for method in experiment.methods)}",
        "work        " + " × ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in work.items()),
    ]


def _devices(experiment: Experiment, data: FederatedData, size: int) -> list[str]:
    """How long clients would take to answer, where they take time."""
    if data.devices is None:
        return []
    samples = experiment.training.build().epochs * data.train.sizes.double()
    seconds = data.devices.seconds(samples, 4 * size).sort().values.tolist()
    low, middle, high = (f"{value:.3g} s" for value in (seconds[0], statistics.median(seconds), seconds[-1]))
    return [f"devices     answer within {low} to {high}, half of them within {middle}"]
