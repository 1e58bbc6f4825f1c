"""A run in Python: what `runs.folder` reads, as frames and figures too, and the trained network."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from .errors import ClientwiseError, RunError
from .experiment.config import load_experiment
from .experiment.parts import make
from .models.flat import fill
from .models.networks import MODELS
from .models.own import OwnModel
from .registry import suggest
from .report.document import Chart
from .report.views import overview, result_charts
from .runs.files import plain_name, write_atomically
from .runs.folder import RunFolder
from .runs.frames import FrameName
from .runs.models import After
from .runs.recorded import CONFIG, read_table, recorded_config
from .runs.rows import ModelFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OwnNetwork = nn.Module | Callable[..., nn.Module]


class Run(RunFolder):
    """A run folder, read-only. The run may still be going.

    - `run.summary()`: one line per method.
    - `run.curve("metric", "AdaFed", seed=1)`: (round, value) for every round.
    - `run.participants("AdaFed", seed=1, round_num=10)`: the clients of a round, and their weights.
    - `run.model("AdaFed")`: the trained network.
    - `run.frame("rounds")`: a table for pandas.
    - `run.figure()`: a figure. A notebook shows a run as a table and a figure, a Python session
      as text.
    - `run.query(sql)`: your own query; `clientwise/runs/schema.py` describes the tables.
    """

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config with every default; empty where it cannot be read."""
        return read_table(self.folder / CONFIG)

    def frame(self, what: FrameName, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """All rows of a kind as a frame.

        Args:
            what: "rounds", "clock" (where clients take time), "clients" (metrics on their own test
                data), "weights" or "criteria".
            library: the library of the frame.
        """
        columns = self.columns(what)
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            raise ClientwiseError(f"run.frame needs {library}: pip install {library}") from None

    def figure(self, chart: str | None = None) -> Figure:
        """A chart of the report as a matplotlib figure, which you can change and save.

        Args:
            chart: the chart, "curves-metric" say; by default the result.
        """
        from .report.picture import Picture

        if chart is None:
            return Picture(result_charts(self))
        charts = {}
        for section in overview([self]).sections:
            for item in section.items:
                if isinstance(item, Chart):
                    charts[f"{section.id}-{item.id}"] = item
        if chart not in charts:
            raise ClientwiseError(f"{self.id}: there is no chart {chart!r}{suggest(chart, charts)}")
        return Picture([charts[chart]])

    def __repr__(self) -> str:
        from .report.terminal import run_text

        try:
            return run_text(self)
        except RunError:
            return f"Run({str(self.folder)!r}): cannot be read"

    def _repr_html_(self) -> str:
        """What a notebook shows: the result in words, as a table and as a figure."""
        from .report.picture import run_html

        return run_html(self)

    def model(
        self,
        method: str,
        seed: int | None = None,
        module: OwnNetwork | None = None,
        *,
        after: After = None,
    ) -> nn.Module:
        """The network that a method has trained.

        The network is made as the run's config says. The plugins it names are imported.

        Args:
            method: the method.
            seed: the seed; by default the first one.
            module: your own network, where the run was given one: a module, which is filled with
                the trained numbers, or a function that makes one.
            after: the round whose model to load, or "best" (see `keep_every` in the config); by
                default the last one.
        """
        if seed is None:
            seed = self.first_seed(method)
        _, tensors = self._trained(method, seed, after)
        network = module if isinstance(module, nn.Module) else self._network(seed, module)()
        try:
            return fill(network, tensors).eval()
        except ValueError as error:
            message = f"{self.id}: its model does not fit this network ({error})"
            raise RunError(message) from None

    def export(
        self,
        method: str,
        seed: int,
        folder: str | Path,
        *,
        onnx: bool = False,
        module: OwnNetwork | None = None,
        after: After = None,
    ) -> list[Path]:
        """Write a method's trained model as named tensors (safetensors), and as ONNX.

        Without `onnx`, nothing that the run's config names is imported.

        Args:
            method: the method.
            seed: the seed.
            folder: where the files are written.
            onnx: whether to write ONNX too.
            module: as for `model`; only ONNX needs it.
            after: as for `model`.

        Returns:
            The files.
        """
        if onnx and not find_spec("onnxscript"):  # PyTorch needs it to write ONNX
            raise ClientwiseError("ONNX needs two more packages: pip install 'clientwise[onnx]'")
        round_num, tensors = self._trained(method, seed, after)
        name = self._file_name(method, seed)
        if after is not None:
            name += f"-round{round_num}"
        path = Path(folder) / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(tensors, self._model_header(method, seed, round_num)))
        if not onnx:
            return [path]
        network = self.model(method, seed, module, after=after)
        return [path, _write_onnx(network, self.model_facts(seed), path.with_suffix(".onnx"))]

    def first_seed(self, method: str) -> int:
        """The seed that a method ran first."""
        return next(iter(self.seeds(method)), -1)

    def has_model(self, method: str) -> bool:
        """Whether a method trains one model for all clients, not one for each."""
        recorded = recorded_config(self.folder).method(method)
        return recorded is None or recorded.control != "alone"

    def _trained(self, method: str, seed: int, after: After) -> tuple[int, dict[str, Tensor]]:
        if not self.has_model(method):
            message = f"{method} has no model: every client keeps one of its own"
            raise RunError(f"{self.id}: {message}")
        return self.trained(method, seed, after)

    def _network(self, seed: int, own: Callable[..., nn.Module] | None) -> Callable[[], nn.Module]:
        """A function that makes the network that was trained."""
        about = self.model_facts(seed)
        if own is not None:
            return partial(OwnModel(own), about.input_shape, about.outputs)
        part = load_experiment(self.folder / "config.toml").model
        if part is None:
            fills = f"run.model(..., module={about.name}) fills it"
            raise RunError(f"{self.id}: was given a network of your own: {fills}")
        return partial(make(MODELS, part), about.input_shape, about.outputs)

    def _file_name(self, method: str, seed: int) -> str:
        """The name of an exported model, with a number where methods have the same plain name."""
        plain = plain_name(method)
        alike = [name for name in self.methods if plain_name(name) == plain]
        if len(alike) > 1:
            plain = f"{plain}-{alike.index(method) + 1}"
        return f"{plain}-seed{seed}"

    def _model_header(self, method: str, seed: int, round_num: int) -> dict[str, str]:
        """Facts about an exported model; safetensors takes texts alone."""
        about = self.model_facts(seed)
        return {
            "run": self.name,
            "method": method,
            "seed": json.dumps(seed),
            "round": json.dumps(round_num),
            "model": about.name,
            "input_shape": json.dumps(about.input_shape),
            "outputs": json.dumps(about.outputs),
            "input_scale": json.dumps(about.scale),
        }


def _write_onnx(network: nn.Module, about: ModelFacts, path: Path) -> Path:
    samples = torch.zeros(2, *about.input_shape)
    try:
        torch.onnx.export(
            network,
            (samples,),
            path,
            input_names=["samples"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("count")},),  # any number of samples
            external_data=False,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).splitlines()[0]
        raise ClientwiseError(f"{about.name}: cannot be written as ONNX ({reason})") from None
    return path
