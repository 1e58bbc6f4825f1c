"""The facts about a run that its runner writes when it begins: data, model, methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...attacks import Hostile
from ...core.aggregation.rules import RULES
from ...core.objective.problem import constant_metric
from ...data.federated import FederatedData, Samples
from ...engine.executor import DeviceExecutor
from ...models.flat import frozen_digest
from ...record.facts import facts_of_run
from ...registry import Need
from ..build.engine import count_outputs
from ..config.methods import MethodSettings
from ..config.schema import Experiment
from ..config.tables import to_plain


def about_methods(experiment: Experiment) -> dict[str, Any]:
    """What a reader of the record needs to know of every method, from the parts themselves."""
    return {method.name: _about_method(method) for method in experiment.methods}


def _about_method(method: MethodSettings) -> dict[str, Any]:
    needs: set[Need] = set()
    for key, registry, part in method.parts():
        if key not in ("server_step", "adapt_loss"):
            needs |= registry.needs(part)
    evidence = method.evidence
    options = evidence.options if evidence else {}
    in_simulation = "simulation" in needs
    return {
        "is_control": method.control is not None or in_simulation,
        "control": method.control,
        "is_available": method.control != "pooled" and not in_simulation,
        "trains_on_server": method.fine_tune is not None
        or method.control == "server_only"
        or "server_samples" in needs,
        "has_rule": "models" in RULES.needs(method.rule),
        "averages_equally": method.sampling is not None
        and method.sampling.options.get("average") != "score",
        "is_secret": method.secure_aggregation is not None,
        "threshold": options.get("threshold"),  # None: nothing is significant
        "margin": options.get("margin") or 0.0,
        "criteria": [part.called for part in method.criteria],
        "score": method.score.name,
        "rule": method.rule.name,
        "evidence": evidence.name if evidence else None,
        "bounds": to_plain(method.bounds),
        "privacy": to_plain(method.privacy) or {},
        "tuned": to_plain(method.tuned) or {},
    }


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
        client_targets=experiment.evaluation.client_targets,
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
