"""A rival that the library does not have: MeritFed. `lab/proof/proof.toml` compares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from clientwise.core.evidence import EVIDENCE, Evidence
from clientwise.core.types import Gathered, Posterior
from clientwise.registry import PositiveFloat, PositiveInt, needs


@EVIDENCE.register("merit", needs("models", "server_samples"))
@dataclass(frozen=True)
class Merit(Evidence):
    """Weights that minimise the loss on the server's set, by mirror descent (MeritFed, Tupitsa et al., 2024).

    w_a ← w_a·exp(−η·⟨∇L(Θ + Σ_b w_b·Δ_b), Δ_a⟩), divided by their sum, from the weights of the score.

    Args:
        steps: of mirror descent.
        learning_rate: η.
    """

    steps: PositiveInt = 10
    learning_rate: PositiveFloat = 1.0

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        logits = prior.log()
        for _ in range(self.steps):
            weights = logits.softmax(0).to(gathered.updates)
            slope = gathered.gradient(gathered.global_model + weights @ gathered.updates)
            logits = logits - self.learning_rate * (gathered.updates @ slope).double().cpu()
        return Posterior(logits.softmax(0))
