"""A run as one meets it in Python: what `runs.reader` reads, as frames and pictures too, and the trained network."""

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
from torch import nn

from .errors import ClientwiseError, RunError
from .experiment.config import load_experiment
from .experiment.schema import make
from .models.flat import fill
from .models.networks import MODELS
from .models.own import OwnModel
from .registry import suggest
from .report.document import Chart
from .report.views import overview, result_charts
from .runs import reader
from .runs.files import plain_name, write_atomically
from .runs.frames import FrameName
from .runs.recorded import CONFIG, read_table, recorded_config
from .runs.rows import ModelFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OwnNetwork = nn.Module | Callable[..., nn.Module]


class Run(reader.Run):
    """A run folder, read-only. It may still be growing.

    `run.summary()` is one line per method, `run.curve("metric", "AdaFed", seed=1)` a list over rounds,
    `run.participants("AdaFed", seed=1, round_num=10)` who got which weight, `run.model("AdaFed")` the trained network.
    `run.frame("rounds")` is a table for pandas, `run.figure()` a picture; a notebook shows a run as both.
    For what no method answers there is `run.query(sql)`, which asks the database; its tables are described in
    `clientwise/runs/schema.py`.
    """

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config as it was written, with every default; nothing where it cannot be read."""
        return read_table(self.folder / CONFIG)

    def frame(self, what: FrameName, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """All rows of a kind as a frame: "rounds", "clock" (where clients take time), "clients" (on their
        own test data), "weights" or "criteria"."""
        columns = self.columns(what)
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            raise ClientwiseError(f"run.frame needs {library}: pip install {library}") from None

    def figure(self, chart: str | None = None) -> Figure:
        """A chart of the report as a figure of matplotlib, which can be changed and saved; by default the result."""
        from .report.picture import Picture

        if chart is None:
            return Picture(result_charts(self))
        known = {f"{section.id}-{item.id}": item for section in overview([self]).sections for item in section.items}
        charts = {name: item for name, item in known.items() if isinstance(item, Chart)}
        if chart not in charts:
            raise ClientwiseError(f"{self.id}: there is no chart {chart!r}{suggest(chart, charts)}")
        return Picture([charts[chart]])

    def _repr_html_(self) -> str:
        """What a notebook shows: what came of it in words, as a table and as a picture."""
        from .report.picture import run_html

        return run_html(self)

    def model(
        self,
        method: str,
        seed: int | None = None,
        module: OwnNetwork | None = None,
        *,
        after: reader.After = None,
    ) -> nn.Module:
        """The network that a method has trained, after the last round it has kept; by default of its first seed.

        It is made as the run's config says, whose plugins are imported for it. `module` is the network where the run
        was given one of your own: a module, which is filled with the trained numbers, or what makes one. `after` is
        another round whose model was kept, or "best" (see `keep_every` in the config).
        """
        seed = self.first_seed(method) if seed is None else seed
        _, tensors = self._trained(method, seed, after)
        network = module if isinstance(module, nn.Module) else self._network(seed, module)()
        try:
            return fill(network, tensors).eval()
        except ValueError as error:
            raise RunError(f"{self.id}: its model does not fit this network ({error})") from None

    def export(
        self,
        method: str,
        seed: int,
        folder: str | Path,
        *,
        onnx: bool = False,
        module: OwnNetwork | None = None,
        after: reader.After = None,
    ) -> list[Path]:
        """Write a method's trained model as named tensors (safetensors), and as ONNX; returns the files.

        Any program reads them. Without `onnx` nothing that the run's config names is imported for it; with it `module`
        is a network of your own, as for `model`, and so is `after`.
        """
        if onnx and not find_spec("onnxscript"):  # by which PyTorch writes it
            raise ClientwiseError("ONNX needs two packages more: pip install 'clientwise[onnx]'")
        round_num, tensors = self._trained(method, seed, after)
        about = self.model_facts(seed)
        facts = {"run": self.name, "method": method, "seed": seed, "round": round_num, "model": about.name}
        facts |= {"input_shape": about.input_shape, "outputs": about.outputs, "input_scale": about.scale}
        alike = [name for name in self.methods if plain_name(name) == plain_name(method)]
        number = f"-{alike.index(method) + 1}" if len(alike) > 1 else ""
        which = "" if after is None else f"-round{round_num}"
        path = Path(folder) / f"{plain_name(method)}{number}-seed{seed}{which}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
        write_atomically(path, save(tensors, texts))
        if not onnx:
            return [path]
        return [path, _write_onnx(self.model(method, seed, module, after=after), about, path.with_suffix(".onnx"))]

    def first_seed(self, method: str) -> int:
        """The seed that a method ran first."""
        return next(iter(self.seeds(method)), -1)

    def has_model(self, method: str) -> bool:
        """Whether a method makes one model for all, not one for every client."""
        recorded = recorded_config(self.folder).method(method)
        return recorded is None or recorded.control != "alone"

    def _trained(self, method: str, seed: int, after: reader.After) -> tuple[int, dict[str, torch.Tensor]]:
        if not self.has_model(method):
            raise RunError(f"{self.id}: {method} has no model: every client keeps one of its own")
        return self.trained(method, seed, after)

    def _network(self, seed: int, own: Callable[..., nn.Module] | None) -> Callable[[], nn.Module]:
        """What makes the network that was trained."""
        about = self.model_facts(seed)
        shapes = about.input_shape, about.outputs
        if own is not None:
            return partial(OwnModel(own), *shapes)
        part = load_experiment(self.folder / "config.toml").model
        if part is None:
            raise RunError(f"{self.id}: was given a network of your own: run.model(..., module={about.name}) fills it")
        return partial(make(MODELS, part), *shapes)


def _write_onnx(network: nn.Module, about: ModelFacts, path: Path) -> Path:
    samples = torch.zeros(2, *about.input_shape)
    try:
        torch.onnx.export(
            network,
            (samples,),
            path,
            input_names=["samples"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("count")},),  # as many samples as one likes
            external_data=False,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).splitlines()[0]
        raise ClientwiseError(f"{about.name}: cannot be written as ONNX ({reason})") from None
    return path
