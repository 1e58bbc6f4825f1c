"""What does not go with LoRA adapters: parts that need more, or less, than the mean of products B·A."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.aggregation.sums import pairs_of
from ...core.types import ModelSpec
from ..config.messages import Issue
from ..config.methods import MethodSettings
from ..config.schema import Experiment

INSTEAD = 'freeze lora_A, so that all clients share it, or set adapters = "factors"'


def adapter_issues(experiment: Experiment, spec: ModelSpec) -> Iterator[Issue]:
    """Parts of methods that cannot average the products of the model's adapters."""
    if not pairs_of(spec):
        return
    for index, settings in enumerate(experiment.methods):
        if settings.adapters == "products":
            for key, reason in _method_issues(settings, experiment):
                yield f"methods[{index}].{key}", f"{reason}: {INSTEAD}"


def _method_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    for key, registry, part in settings.parts():
        if "single_values" in registry.needs(part):
            reason = (
                "combines single values of updates, and of LoRA adapters the products B·A count"
            )
            yield key, f"{part.name} {reason}"
    method = settings.build(experiment.training)
    if method.noises_mean:
        yield "privacy", "the sensitivity of a mean of products B·A (LoRA adapters) is not known"
    if method.secure:
        reason = "the server learns sums of A and of B, and no mean of products B·A (LoRA adapters)"
        yield "secure_aggregation", reason


def adapter_doubts(experiment: Experiment, spec: ModelSpec) -> Iterator[str]:
    """A line where the factors of adapters are averaged."""
    averaging = [one.name for one in experiment.methods if one.adapters == "factors"]
    if averaging and pairs_of(spec):
        means = "means of A and of B, whose product is not the mean of the clients' products"
        yield f'{", ".join(averaging)}: adapters = "factors" takes {means}'
