"""What a record says of a method: see `MethodFacts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...core.aggregation.rules import RULES
from ...core.evidence import EVIDENCE
from ...core.sampling import SAMPLINGS
from ...record.facts import MethodFacts
from ..config.methods import MethodSettings
from ..config.parts import make_if_named

CHANGING_NO_MODEL = (
    "server_step",
    "adapt_loss",
)  # keys of parts that need samples to compare models
POOLING = "pooled"  # a control that needs all clients' samples


def method_facts(settings: MethodSettings, table: Mapping[str, Any] | None = None) -> MethodFacts:
    """Facts about a method, from its parts.

    Args:
        settings: of the method.
        table: as the config of the run states it, where criteria were given otherwise.
    """
    table = settings.to_dict() if table is None else table
    evidence: Any = make_if_named(EVIDENCE, settings.evidence)
    sampling = make_if_named(SAMPLINGS, settings.sampling)
    needs: set[str] = set()
    for key, registry, part in settings.parts():
        if key not in CHANGING_NO_MODEL:
            needs |= registry.needs(part)
    learns_there = settings.fine_tune is not None or settings.control == "server_only"
    return MethodFacts(
        name=settings.name,
        criteria=[one.get("as") or one["name"] for one in table["criteria"]],
        score=table["score"]["name"],
        rule=settings.rule.name,
        evidence=settings.evidence.name if settings.evidence else None,
        control=settings.control,
        bounds=table.get("bounds"),
        privacy=table.get("privacy") or {},
        tuned=table.get("tuned") or {},
        is_secret=settings.secure_aggregation is not None,
        has_rule="models" in RULES.needs(settings.rule),
        is_control=settings.control is not None or "simulation" in needs,
        is_available=settings.control != POOLING and "simulation" not in needs,
        trains_on_server=learns_there or "server_samples" in needs,
        averages_equally=sampling is not None and sampling.averages_equally,
        threshold=getattr(evidence, "threshold", math.inf),
        margin=getattr(evidence, "margin", 0.0),
    )
