"""One round of every method on a few samples of a few clients, with the real formula and the real engine, on the CPU.

It shows networks that do not fit, and parts of a user's own that do not work, before a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from ...core.clock import Pace
from ...core.criteria import CRITERIA
from ...core.method import Method
from ...core.round import first_state, run_round
from ...core.types import LocalTraining, RoundRecord
from ...core.weights.weighting import ScoreError
from ...data.arrays import shape_hint
from ...data.federated import FederatedData, Holdings, Samples
from ...engine.executor import DeviceExecutor
from ...engine.local import LocalEngine
from ...engine.probes import with_input_type
from ...errors import ClientwiseError
from ...models.flat import flattened
from ...models.modules import check_batch, outputs_of
from ..build.engine import build_plan, count_outputs
from ..config.schema import Experiment
from ..config.tables import Issue

CLIENTS = 3  # those with most samples
SAMPLES = 8  # of each
SMALL_RATE = 1e-3  # of all steps
ROUNDING = 1e-6


def network_issues(module: nn.Module, samples: Samples, batch: int) -> Iterator[Issue]:
    """What is wrong with the network before any training: its parameters, and its output for one sample.

    Args:
        module: the network.
        samples: all of them.
        batch: the largest batch that it will be given.
    """
    parameters = dict(module.named_parameters())
    if not any(one.requires_grad for one in parameters.values()):
        yield "model", "has no parameters to train"
        return
    for name, one in parameters.items():
        if not one.is_meta and not bool(one.isfinite().all()):
            yield "model", f"its parameter {name} has NaN or Inf before training"
            return
    samples = with_input_type(samples, module)
    # Of integers the sample with the largest one, which an embedding may lack
    has_integers = samples.integers or samples.parts
    row = int(samples.inputs.flatten(1).amax(1).argmax()) if has_integers else 0
    sample = samples.network_inputs(torch.tensor([row]))
    try:
        check_batch(module, sample, batch)
        with torch.no_grad():
            output = outputs_of(module.eval(), sample)
    except (ValueError, TypeError) as error:  # ours, or about what `forward` takes or returns
        yield "model", str(error).splitlines()[0]
        return
    except Exception as error:  # PyTorch's, or whatever a user's own network raises
        yield "model", f"does not take samples {_described(samples)} ({_explained(error, samples)})"
        return
    shape = output.shape[1:] if output.ndim > 1 else output.shape
    if samples.problem.takes(shape, samples.targets.shape[1:]):
        return
    wanted = count_outputs(samples)
    returned = f"{output.numel()} number{'s' * (output.numel() != 1)}"
    needed = f"{wanted} {'is' if wanted == 1 else 'are'} needed"
    if output.numel() == wanted:
        returned = f"numbers of shape {tuple(shape)}"
        needed = "another shape is needed"
    why = samples.problem.why_outputs(samples.targets, output.numel())
    yield "model", f"returns {returned} for a sample; {needed}: {why}"


def trial_issues(
    experiment: Experiment, data: FederatedData, module: nn.Module, methods: Sequence[int]
) -> Iterator[Issue]:
    """What a round shows of the network, and of the methods at these places in the config."""
    trial = _Trial(experiment, data, module)
    _, failed = trial.run(Method(training=LocalTraining(learning_rate=SMALL_RATE)))
    if failed:
        largest = data.called(int(data.train.sizes.argmax()))
        count = min(SAMPLES, int(data.train.sizes.max()))
        if "does not require grad" in failed:
            failed += (
                "; no output depends on a parameter: remove detach() and no_grad() from `forward`"
            )
        yield "model", f"cannot be trained on {count} samples of {largest} ({failed})"
        return
    built = experiment.build_methods()
    for index in methods:
        yield from _method_issues(f"methods[{index}]", _alone(built[index]), trial)


def _method_issues(place: str, method: Method, trial: _Trial) -> Iterator[Issue]:
    if trial.has_batch_norm and method.training.batch_size == 1:
        message = "must be at least 2: batch norm cannot train on one sample"
        yield f"{place}.training.batch_size = 1", message
        return
    alone, failed = trial.run(method)
    if failed:
        yield place, f"does not work on a few samples ({failed})"
        return
    given = [CRITERIA.get(one.part.name).__module__ for one in method.criteria]
    if alone is None or all(module.startswith("clientwise.") for module in given):
        return  # tests/test_testing.py tries those of the library
    together, _ = trial.run(method, chunk_size=CLIENTS)
    if together is None or together.raw.shape != alone.raw.shape:
        return
    for column, criterion in enumerate(method.criteria):
        pair = alone.raw[:, column], together.raw[:, column]
        if not torch.allclose(*pair, rtol=0.05, atol=ROUNDING):
            hint = "measure it on the server (measured_by='server', needs={'whole_cohort'})"
            said = f"{criterion.name} depends on the other clients: {hint}"
            yield f"{place}.criteria[{column}]", said


def _alone(method: Method) -> Method:
    """The method's own parts, without what depends on the number of clients, on time or on other processes."""
    # A model that diverges with a small rate is the fault of a part, not of the rate
    training = replace(method.training, epochs=1, learning_rate=SMALL_RATE, control_variates=False)
    fine_tune = method.fine_tune and replace(method.fine_tune, epochs=1, learning_rate=SMALL_RATE)
    return replace(
        method,
        training=training,
        fine_tune=fine_tune,
        evidence=method.evidence and method.evidence.for_trial(),
        bounds=None,
        control=None,
        pace=Pace(),
        privacy=None,
    )


class _Trial:
    """Rounds of methods on the same few samples, from the same model."""

    def __init__(self, experiment: Experiment, data: FederatedData, module: nn.Module) -> None:
        chosen = sorted(data.train.sizes.argsort(descending=True, stable=True)[:CLIENTS].tolist())
        self._data = _few(data, chosen)
        self._module = module
        self._start = flattened(module)  # the engine trains in the module itself
        self._seed = experiment.seeds[0]
        self._executor = self._fresh_executor()
        self.has_batch_norm = bool(self._executor.pairs)
        plan = build_plan(experiment, len(chosen), self._seed)
        self._plan = replace(plan, cohort_size=len(chosen), probability=None, away=())

    def _fresh_executor(self) -> DeviceExecutor:
        cpu = torch.device("cpu")
        return DeviceExecutor(
            self._data.samples, self._module, cpu, mode="loop", precision="float32"
        )

    def run(self, method: Method, chunk_size: int = 1) -> tuple[RoundRecord | None, str]:
        """The record of a round whose clients train in chunks, and why it does not work, if it does not."""
        engine = LocalEngine(
            self._data,
            self._module,
            seed=self._seed,
            executor=self._executor,
            chunk_size=chunk_size,
        )
        try:
            state = first_state(self._start, method, engine)
            _, record = run_round(state, method, self._plan, engine)
        except ScoreError:  # of values that are equal or extreme since there are few samples
            return None, ""
        except ClientwiseError as error:
            return None, str(error)
        except Exception as error:  # a user's own part may raise anything
            self._executor = (
                self._fresh_executor()
            )  # a part that failed may have left something in it
            return None, _explained(error, self._executor.samples)
        all_refused = record.refusals and not record.client_ids
        return record, record.refusals[0].reason if all_refused else ""


def _few(data: FederatedData, clients: Sequence[int]) -> FederatedData:
    """A few samples of some clients and of the server."""

    def first(held: Holdings, holders: Sequence[int]) -> Holdings:
        rows = torch.arange(len(held.indices))
        return held.picked([rows[held.slice(one)][:SAMPLES] for one in holders])

    honest = replace(
        data,
        poisoned=None,
        triggered=None,
        new_data=(),
        attributes={name: values[list(clients)] for name, values in data.attributes.items()},
        names=tuple(data.names[client] for client in clients) if data.names else (),
        devices=data.devices.of(clients) if data.devices else None,
    )
    return honest.changed(lambda held: first(held, clients), lambda held: first(held, [0]))


def _described(samples: Samples) -> str:
    """Shape and type of a sample, as the network is given it."""
    kinds = {True: "integers", False: "float32"}
    if not samples.parts:
        return f"of shape {samples.input_shape} ({kinds[samples.integers]})"
    parts = [f"{one.name} {one.shape} ({kinds[one.is_integer]})" for one in samples.parts]
    return f"with {', '.join(parts)}"


def _explained(error: Exception, samples: Samples) -> str:
    """An error in one line, with what to do where it is known."""
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}"
    if isinstance(error, KeyError) and error.args and str(error.args[0]).isidentifier():
        text = f"clients have no attribute {error.args[0]!r}; add it to [attributes]"
    if isinstance(error, IndexError) and (samples.integers or samples.parts):
        largest = int(samples.inputs.max())
        text += f"; the largest number is {largest}: an nn.Embedding for it needs num_embeddings > {largest}"
    if hint := shape_hint(samples.inputs):
        text += f"; {hint}"
    elif samples.inputs.ndim == 1:
        text += "; a sample is one number: for a row of one column, pass inputs[:, None]"
    return text
