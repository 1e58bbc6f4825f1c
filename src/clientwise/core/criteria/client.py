"""Criteria that a client measures: its samples, their labels, and its training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...registry import PositiveFloat
from .base import ClientFacts, criterion


@criterion("dataset_size", measured_by="client", fixed=True)
def dataset_size(clients: ClientFacts) -> Tensor:
    """Number of training samples (DS; alone it is FedAvg).

    Returns:
        Values [n], zero or more.
    """
    return clients.num_samples


@criterion(
    "label_diversity",
    measured_by="client",
    high=lambda problem: problem.num_classes,
    needs={"classes"},
    fixed=True,
)
def label_diversity(clients: ClientFacts) -> Tensor:
    """Number of distinct labels a client holds (P1 5.1, LD).

    Returns:
        Values [n], 0 to C, the number of classes.
    """
    return (clients.label_counts > 0).sum(-1)


@criterion(
    "class_balance",
    measured_by="client",
    high=1.0,
    needs={"classes"},
    fixed=True,
)
def class_balance(clients: ClientFacts) -> Tensor:
    """Binary: min(#pos, #neg)/max(#pos, #neg) (P1 Eq. 9, CB). More classes: label entropy divided by log C.

    Returns:
        Values [n] in [0, 1].
    """
    counts = clients.label_counts.double()
    if counts.shape[-1] == 2:
        return counts.amin(-1) / counts.amax(-1).clamp(min=1)
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    entropy: Tensor = torch.special.entr(share).sum(-1)
    return (entropy / math.log(counts.shape[-1])).clamp(max=1.0)


@criterion(
    "label_closeness",
    measured_by="client",
    high=1.0,
    needs={"classes"},
    fixed=True,
)
def label_closeness(clients: ClientFacts) -> Tensor:
    """1 − d with d = ‖label shares − 1/C‖₂, the distance from all classes alike (FedDisco, Ye et al., 2023).

    Returns:
        Values [n] in [0, 1].
    """
    share = clients.label_counts / clients.label_counts.sum(-1, keepdim=True).clamp(min=1)
    distance: Tensor = torch.linalg.vector_norm(share.double() - 1.0 / share.shape[-1], dim=-1)
    return 1.0 - distance  # which is √(1 − 1/C) at most


@criterion(
    "sharpness",
    measured_by="client",
    high=lambda problem, blurry, high: high if blurry is None else 1.0,
    fixed=True,
)
def sharpness(
    clients: ClientFacts, *, blurry: str | None = None, high: PositiveFloat = 16.0
) -> Tensor:
    """Fraction of images not marked by the sample attribute `blurry` (P1 5.2, IS); without one, from the pixels.

    From the pixels it is the mean variance of the Laplacian, the usual measure of focus.

    Args:
        clients: n clients with images.
        blurry: name of a sample attribute that is above 0 for blurry images.
        high: largest possible value from the pixels; 16 for pixels in [0, 1].

    Returns:
        Values [n], in [0, 1] by the attribute, in [0, high] by the pixels.
    """
    if blurry is not None:
        if blurry not in clients.sample_attributes:
            raise KeyError(
                f"the data has no sample attribute {blurry!r}; it has {sorted(clients.sample_attributes)}"
            )
        return clients.mean_over_samples((clients.sample_attributes[blurry] <= 0).double())
    return clients.mean_over_samples(laplacian_variance(clients.inputs))


def laplacian_variance(images: Tensor) -> Tensor:
    """Variance of the Laplacian [N] of images [N, C, H, W] (colours are averaged) or [N, H, W].

    >>> laplacian_variance(torch.eye(4)[None])
    tensor([9.])
    """
    if images.ndim not in (3, 4):
        raise ValueError(
            f"sharpness from pixels needs images, got samples of shape {tuple(images.shape[1:])}"
        )
    grey = images.mean(1) if images.ndim == 4 else images
    centre = grey[:, 1:-1, 1:-1]
    neighbours = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    return (neighbours - 4 * centre).flatten(1).var(1, unbiased=False)


@criterion("training_loss", measured_by="client", high=1.0)
def training_loss(clients: ClientFacts) -> Tensor:
    """1/(1 + loss) of the last local epoch: clients whose model fits their data weigh more.

    Returns:
        Values [n] in (0, 1].
    """
    return 1.0 / (1.0 + clients.training_loss.double())


@criterion("exp_loss", measured_by="client", high=1.0)
def exp_loss(clients: ClientFacts, *, beta: PositiveFloat = 1.0) -> Tensor:
    """exp(−β·loss) of the last local epoch: divided by the cohort's sum, a softmax (DGA, Dimitriadis et al., 2021).

    Args:
        clients: n clients that have trained.
        beta: β; the larger, the more the lowest losses dominate.

    Returns:
        Values [n] in (0, 1].
    """
    return (-beta * clients.training_loss.double()).exp()


@criterion("start_loss", measured_by="client")
def start_loss(clients: ClientFacts) -> Tensor:
    """Loss of the received model on the client's training samples, before it trains (q-FedAvg, AFL).

    Returns:
        Values [n], zero or more.
    """
    if clients.load_start_loss is None:
        raise KeyError("start_loss needs clients that clientwise trains")
    return clients.load_start_loss()


@criterion("local_steps", measured_by="client", fixed=True)
def local_steps(clients: ClientFacts) -> Tensor:
    """Local steps τ; with momentum or a proximal term, as many plain steps (FedNova's ‖a‖₁, Wang et al., 2020).

    Returns:
        Values [n], zero or more.
    """
    training = clients.training
    if training is None:
        raise KeyError("local_steps needs clients that clientwise trains")
    steps = training.num_steps(clients.num_samples).double()
    if training.momentum:
        # Σ_t (1 − ρ^t)/(1 − ρ): an early gradient still moves the model in later steps
        rest = training.momentum * (1 - training.momentum**steps) / (1 - training.momentum)
        return (steps - rest) / (1 - training.momentum)
    if training.proximal:
        # Σ_t (1 − ημ)^t: later steps pull an early gradient back
        kept = 1 - training.learning_rate * training.proximal
        return (1 - kept**steps) / (1 - kept)
    return steps
