"""The network of an experiment, with its initial parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ...data.arrays import shape_hint
from ...data.federated import Samples
from ...errors import ConfigError
from ...models.flat import fill, fill_flat
from ...models.networks import MODELS, initialised
from ...models.size import check_parameters, count_parameters, described, zeros
from ..config.parts import make
from ..config.schema import Experiment

LARGE = 2**24  # parameters
# Of a model while it is trained: the global one, the workers' with their gradients, the updates.
COPIES = 8


def build_module(
    experiment: Experiment, samples: Samples, seed: int, *, to_try: bool = False
) -> nn.Module:
    """The network, initialised by the seed. A large one that is only `to_try` is left at zeros."""
    network = _network(experiment, samples)
    try:
        sketch = described(network)
        check_parameters(sketch, COPIES)
        if to_try and count_parameters(sketch) > LARGE:
            return _filled(experiment, zeros(network).float())
        module = initialised(network, seed)
        return _filled(experiment, module.float())  # models are vectors of float32
    except ConfigError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        message = str(error).splitlines()[0]
        if hint := shape_hint(samples.inputs, samples.targets):
            message += f"; {hint}"
        raise ConfigError(experiment.source, [("model", message)]) from None
    except Exception as error:  # a user's own network may raise anything
        reason = str(error).splitlines()[0] if str(error) else ""
        message = f"{experiment.model_name} cannot be built: {type(error).__name__}: {reason}"
        if experiment.own_model is not None:
            message += f". With two arguments, it is called with {samples.input_shape}, {count_outputs(samples)}"
        if hint := shape_hint(samples.inputs, samples.targets):
            message += f"; {hint}"
        if samples.parts:
            names = ", ".join(part.name for part in samples.parts)
            message += f". The samples have several inputs ({names}): the first argument is their shapes by name"
        raise ConfigError(experiment.source, [("model", message)]) from error


def foreign_types(experiment: Experiment, samples: Samples) -> list[str]:
    """The types of the network's parameters that are not float32, as it is given."""
    parameters = described(_network(experiment, samples)).parameters()
    found = {str(one.dtype).removeprefix("torch.") for one in parameters}
    return sorted(found - {"float32"})


def _filled(experiment: Experiment, module: nn.Module) -> nn.Module:
    """The network with the parameters of the config's `initial_model`, or those that its run began with."""
    own = experiment.own_model
    path = experiment.initial_model
    if path is None:
        return module if own is None or own.start is None else fill_flat(module, own.start)
    try:
        if not Path(path).is_file():
            raise ValueError("no such file")
        tensors = load_file(path)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("it has NaN or Inf")
        return fill(module, tensors)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        message = f"{path}: not a model for this network ({reason})"
        raise ConfigError(experiment.source, [("initial_model", message)]) from None


def _network(experiment: Experiment, samples: Samples) -> Callable[[], nn.Module]:
    """A function that builds the network for these samples."""
    shapes = (samples.input_shape, count_outputs(samples))
    if experiment.own_model is not None:
        return partial(experiment.own_model, *shapes)
    if experiment.model is None:
        hint = "is missing: name one, or pass a module to `cw.run`"
        raise ConfigError(experiment.source, [("model", hint)])
    return partial(make(MODELS, experiment.model), *shapes)


def count_outputs(samples: Samples) -> int:
    """The number of outputs that the network must have."""
    return samples.problem.num_outputs(samples.targets.shape[1:])
