"""What a network does with these samples, found by trying it before clients train."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.seeding import seeded_default_generator
from ..data.federated import Samples
from ..models.flat import FlatModel
from ..models.modules import outputs_of, values_per_sample
from .device import CudaGraph


def with_input_type(samples: Samples, module: nn.Module) -> Samples:
    """The samples with integers as integers, where they are integers and the network takes them: token ids.

    Pictures of bytes and scaled samples are floats in any case. A network that takes neither is given integers if it
    embeds them: then the error that it raises is about them.
    """
    kept = replace(samples, integers=True)
    is_number = samples.inputs.is_floating_point() or samples.inputs.dtype == torch.uint8
    if is_number or samples.parts or samples.scale != 1 or not len(samples.inputs):
        return samples
    if _runs(module, kept):
        return kept
    embeds = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())
    return kept if embeds and not _runs(module, samples) else samples


def _runs(module: nn.Module, samples: Samples) -> bool:
    was_training = module.training
    try:
        with torch.no_grad():
            outputs_of(module.eval(), samples.network_inputs(_first(1, module)))
    except Exception:  # a user's own network may raise anything
        return False
    finally:
        module.train(was_training)
    return True


def draws_from_default_generator(flat: FlatModel, samples: Samples) -> bool:
    """Whether a network in training draws from PyTorch's one default generator, as the dropout inside `nn.LSTM` does.

    The generator belongs to the whole process, so clients of such a network cannot train side by side.
    """
    with torch.no_grad(), seeded_default_generator(0, "trial"):
        start = torch.get_rng_state()
        # A network that does not fit these samples: training it raises the error
        failed = _training_error(flat, samples, 2) is not None
        return failed or not torch.equal(start, torch.get_rng_state())


def needs_two_samples(flat: FlatModel, samples: Samples) -> bool:
    """Whether a network cannot train on a batch of one sample, as with batch norm on vectors."""
    if not any(isinstance(layer, _BatchNorm) for layer in flat.module.modules()):
        return False
    with torch.no_grad(), seeded_default_generator(0, "trial"):
        one, two = (_training_error(flat, samples, count) for count in (1, 2))
    return one is not None and two is None


def largest_layer(flat: FlatModel, samples: Samples) -> int:
    """How many values the layer with most of them makes of one sample; 0 where the network cannot be tried."""
    if not len(samples.inputs):  # a server whose clients are elsewhere
        return 0
    rows = _first(1, flat.module)
    try:
        with seeded_default_generator(0, "trial", device=rows.device):
            _, largest = values_per_sample(flat.module, samples.network_inputs(rows))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a user's own network may raise anything: so does evaluating it
        return 0
    return largest


def capture_error(flat: FlatModel, samples: Samples) -> str | None:
    """Why a training step cannot be a CUDA graph, or None. The network may read values on the CPU, for example."""
    rows = _first(2, flat.module)
    targets = samples.targets[rows.to(samples.targets.device)].to(rows.device)
    parameters = [one for one in flat.module.parameters() if one.requires_grad]
    before = flat.vector.clone()

    def step() -> None:
        outputs = outputs_of(flat.module, samples.network_inputs(rows))
        loss = samples.problem.loss.per_sample(outputs.float(), targets).mean()
        torch.autograd.grad(loss, parameters, materialize_grads=True)

    try:
        flat.module.train()
        with seeded_default_generator(0, "trial", device=rows.device):
            CudaGraph(step, [flat.vector, *flat.module.buffers()])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's own network may raise anything
        return (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        flat.load(before)
    return None


def _training_error(flat: FlatModel, samples: Samples, count: int) -> Exception | None:
    """What the network raises in training on `count` samples; its statistics are put back."""
    before = flat.vector.clone()
    try:
        outputs_of(flat.module.train(), samples.network_inputs(_first(count, flat.module)))
    except Exception as error:  # a user's own network may raise anything
        return error
    finally:
        flat.load(before)  # batch norm has counted these samples
    return None


def _first(count: int, module: nn.Module) -> Tensor:
    """The first sample, `count` times, where the network is."""
    device = next((one.device for one in module.parameters()), None)
    return torch.zeros(count, dtype=torch.int64, device=device)
