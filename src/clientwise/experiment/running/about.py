"""The facts about a run that its runner writes when it begins: data, model, methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...attacks import Hostile
from ...core.aggregation.rules import RULES
from ...core.evidence import EVIDENCE
from ...core.objective.problem import constant_metric
from ...data.federated import FederatedData, Samples
from ...engine.executor import DeviceExecutor
from ...models.flat import frozen_digest
from ...record.facts import MethodFacts, facts_of_run
from ..build.engine import count_outputs
from ..config.methods import MethodSettings
from ..config.parts import make_if_named
from ..config.schema import Experiment

CHANGING_NO_MODEL = (
    "server_step",
    "adapt_loss",
)  # keys of parts that need samples to compare models
POOLING = "pooled"  # a control that needs all clients' samples


def about_method(settings: MethodSettings) -> MethodFacts:
    """Facts about a method, from its parts."""
    table = settings.to_dict()
    evidence: Any = make_if_named(EVIDENCE, settings.evidence)
    needs: set[str] = set()
    for key, registry, part in settings.parts():
        if key not in CHANGING_NO_MODEL:
            needs |= registry.needs(part)
    learns_there = settings.fine_tune is not None or settings.control == "server_only"
    return MethodFacts(
        name=settings.name,
        criteria=tuple(part.called for part in settings.criteria),
        score=settings.score.name,
        rule=settings.rule.name,
        evidence=settings.evidence.name if settings.evidence else None,
        control=settings.control,
        bounds=table.get("bounds"),
        privacy=table.get("privacy") or {},
        tuned=table.get("tuned") or {},
        has_rule="models" in RULES.needs(settings.rule),
        is_control=settings.control is not None or "simulation" in needs,
        is_available=settings.control != POOLING and "simulation" not in needs,
        trains_on_server=learns_there or "server_samples" in needs,
        threshold=getattr(evidence, "threshold", math.inf),
        margin=getattr(evidence, "margin", 0.0),
    )


def about_run(
    experiment: Experiment,
    data: FederatedData,
    hostile: Mapping[int, Hostile],
    executor: DeviceExecutor,
    own_data: FederatedData | None,
) -> dict[str, Any]:
    """What is known of a run when it begins: what is planned, the metric, and the samples that it is about.

    Args:
        experiment: the experiment.
        data: of the first seed.
        hostile: its hostile clients.
        executor: trains them.
        own_data: the user's own, instead of those of the config.
    """
    on_clients = reports_on_clients(experiment, own_data)
    problem = data.samples.problem
    facts: dict[str, Any] = {}
    if data.weigh is not None:
        facts["weigh_samples"] = len(data.weigh.targets)
    held = data.report
    if held is None and not hostile:
        held = data.test
    if held is not None and len(held.targets):
        facts["report_samples"] = len(held.targets)
        facts["constant_metric"] = constant_metric(problem, held.targets)
        if problem.num_classes:
            counts = held.targets.bincount(minlength=problem.num_classes)
            facts["report_rarest"] = int(counts.min())
    return facts_of_run(
        experiment.name,
        problem,
        rounds=experiment.rounds,
        lanes=len(experiment.seeds) * len(experiment.methods),
        num_values=executor.spec.size,
        reported_on="the honest clients' own test data" if on_clients else "held-out samples",
        computed=str(executor),
        target=experiment.evaluation.target,
        **facts,
    )


def about_model(
    experiment: Experiment, samples: Samples, executor: DeviceExecutor
) -> dict[str, Any]:
    """What it takes to make the network again, and to predict with it."""
    return {
        "name": experiment.model_name,
        "input_shape": list(samples.inputs.shape[1:]),
        "named_shapes": {part.name: part.shape for part in samples.parts},
        "outputs": count_outputs(samples),
        "scale": samples.scale,
        "tensors": [[layer.name, layer.shape] for layer in executor.spec.layers],
        "kind": samples.problem.kind,
        "table": asdict(samples.table) if samples.table else None,
        "frozen": frozen_digest(executor.flat.module),
    }


def reports_on_clients(experiment: Experiment, own_data: FederatedData | None) -> bool:
    """Whether the server has no samples to report on."""
    if own_data is not None:
        return own_data.report is None
    if not experiment.server_holds_samples:
        return True
    server = experiment.server_set
    shares_none = not server.shared_set and server.report_fraction == 0
    return server.source == "held_out" and shares_none
