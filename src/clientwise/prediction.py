"""Predictions for new rows by a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .core.objective.problem import Problem, named_problem
from .data.arrays import NamedInput, is_frame, pack, read_holders
from .data.encoding import Encoding
from .data.federated import Samples
from .data.table import Encoder, encode_rows, read_rows
from .engine.probes import with_input_type
from .errors import ClientwiseError
from .experiment.config.parts import make, read_part
from .models.flat import fill
from .models.modules import OwnModel, OwnNetwork, check_parameters, described, outputs_of
from .models.networks import MODELS
from .record.facts import ModelFacts
from .record.models import ModelHeader, read_model

BATCH = 4096  # rows
BATCH_OF_IMAGES = 16  # of which every pixel is predicted
COPIES = 4  # of a model: its file, the network, and what reading takes


class Predictor(nn.Module):
    """A trained network with the columns, categories and classes of the table it was trained on.

    As a module, it takes values [N, columns] as `InputColumn` describes them.
    """

    def __init__(self, network: nn.Module, table: Encoding, problem: Problem) -> None:
        super().__init__()
        self.table = table
        self.problem = problem
        self.encoder = Encoder(table.columns)
        self.network = network
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        """Probabilities [N, C], numbers or risks [N, 1]."""
        return self.problem.predictions(outputs_of(self.network, self.encoder(values)))

    def predict(self, rows: Any, *, source: str = "rows") -> Any:
        """Predictions for the rows of a pandas or polars frame, or of a CSV, TSV or Parquet file.

        Columns may have any order; those that the model does not know are not used. An empty cell is
        a missing value.

        Args:
            rows: the frame, or the path of the file.
            source: what messages call the frame.

        Returns:
            A frame like `rows` (pandas for a file), one row for each. Classification: the columns
            `prediction` and `probability of CLASS`. Regression: `prediction`, in the units of the
            training data. Survival: `risk`; a higher risk means an earlier event.
        """
        import pandas

        if isinstance(rows, str | Path):
            source = str(rows)
            rows = read_rows(Path(rows), self.table)
        if not isinstance(rows, dict) and not is_frame(rows):
            raise ClientwiseError(
                f"{source}: must be a pandas or polars frame or the path of a file, got {type(rows).__name__}"
            )
        values = torch.from_numpy(encode_rows(rows, self.table, source))
        with torch.no_grad():
            predictions = torch.cat([self(batch) for batch in torch.split(values, BATCH)])
        named = self.problem.named(predictions, self.table.classes)
        if isinstance(rows, pandas.DataFrame):
            return pandas.DataFrame(named, index=rows.index)
        return type(rows)(named)


def predict_samples(network: nn.Module, given: Any, about: ModelFacts) -> NDArray[Any]:
    """Predictions for samples that are no table: classes [N], numbers, risks, labels [N, L] or masks [N, H, W].

    Args:
        network: trained, in eval mode.
        given: an array or tensor [N, ...], a dictionary of several by name, or a PyTorch dataset.
        about: the samples that it was trained on.
    """
    problem = named_problem(about.kind, max(2, about.outputs))
    inputs, parts = _inputs(given, about)
    targets = torch.zeros(len(inputs), dtype=torch.int64)
    samples = Samples(inputs, targets, problem, scale=about.scale, parts=parts)
    samples = with_input_type(samples, network)
    with torch.no_grad():
        at_once = BATCH_OF_IMAGES if problem.is_dense else BATCH
        batches = torch.split(torch.arange(len(inputs)), at_once)
        decided = []
        for batch in batches:
            outputs = outputs_of(network, samples.network_inputs(batch))
            decided.append(problem.decided(problem.predictions(outputs)))
    found: NDArray[Any] = torch.cat(decided).numpy()
    return found


def _inputs(given: Any, about: ModelFacts) -> tuple[Tensor, tuple[NamedInput, ...]]:
    """The samples, and their parts where the network takes several; ClientwiseError where they do not fit."""
    parts: tuple[NamedInput, ...] = ()
    try:
        if isinstance(given, Dataset | DataLoader):
            (read,) = read_holders([("inputs", given)])
            values, parts = read.inputs, read.parts
        elif isinstance(given, Mapping):
            values, parts = pack(given)
        else:
            values = torch.as_tensor(given.to_numpy() if hasattr(given, "to_numpy") else given)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        said = f"predict: these are no samples ({reason}); pass the inputs alone"
        raise ClientwiseError(said) from None
    shapes = {part.name: part.shape for part in parts}
    if shapes != about.named_shapes:
        wanted = about.named_shapes or "one array"
        raise ClientwiseError(f"predict: the network takes {wanted}, got {shapes or 'one array'}")
    if values.shape[1:] != about.input_shape:
        hint = "; of one sample, pass x[None]" if values.shape == about.input_shape else ""
        wanted = ", ".join(["N", *map(str, about.input_shape)])
        raise ClientwiseError(
            f"predict: samples must have shape ({wanted}), got {tuple(values.shape)}{hint}"
        )
    if not values.isfinite().all():
        raise ClientwiseError(
            "predict: some samples have values that are not finite numbers; correct them, or leave those samples out"
        )
    return values, parts


def load_predictor(path: str | Path, module: OwnNetwork | None = None) -> Predictor:
    """A model that `clientwise export` wrote. No code of the run is imported.

    Args:
        path: the file.
        module: your own network, where the run was given one or a plugin registered it: a module, or
            a function that makes one.
    """
    header, tensors = read_model(Path(path))
    if header.table is None:
        own = ", module=network" if header.network is None else ""
        options = ", strict=False" if header.frozen else ""
        raise ClientwiseError(
            f"{path}: its inputs are not the columns of a table. Predict by the run: "
            f"cw.load(RUN_FOLDER{own}).predict(INPUTS); or load the weights into your network: "
            f"network.load_state_dict(safetensors.torch.load_file({str(path)!r}){options})"
        )
    try:
        make_network = _network(header, module)
        check_parameters(described(make_network), COPIES)
        network = fill(make_network(), tensors, header.frozen)
        return predictor(network, header.kind, header.table, header.outputs)
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise ClientwiseError(f"{path}: cannot be used to predict: {reason}") from None


def predictor(network: nn.Module, kind: str, table: Encoding, outputs: int) -> Predictor:
    """A network with what its inputs are made from; ValueError where they do not fit."""
    problem = named_problem(kind, len(table.classes))
    if outputs not in (problem.num_outputs(torch.Size()), problem.num_classes):
        raise ValueError(f"it has {outputs} outputs and {len(table.classes)} classes")
    return Predictor(network, table, problem)


def _network(header: ModelHeader, module: OwnNetwork | None) -> Any:
    """A function that makes the network."""
    if module is not None:
        return partial(OwnModel(module), header.input_shape, header.outputs)
    if header.network is None or header.network.get("name") not in MODELS:
        raise ValueError(
            f"its network {header.model} is not part of clientwise; pass it in Python: "
            f"cw.load(FILE, module={header.model}).predict(ROWS)"
        )
    part = read_part(MODELS, header.network)
    return partial(make(MODELS, part), header.input_shape, header.outputs)
