"""A run in Python: what `record/run.py` reads, figures too, and the trained network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .errors import ClientwiseError, RunError, needing
from .experiment.config.parts import make
from .experiment.load import load_experiment
from .models.flat import fill
from .models.modules import OwnModel, OwnNetwork
from .models.networks import MODELS, initialised
from .prediction import Predictor, predict_samples, predictor
from .record.files import plain_name
from .record.models import (
    ENDING,
    ModelHeader,
    metadata_of,
    write_model,
)
from .record.run import After, RunFolder
from .registry import listed, suggest
from .writing import make_folder, replacing

if TYPE_CHECKING:
    import altair


class Sentences(str):
    """A text that a Python session shows line by line."""

    def __repr__(self) -> str:
        return str(self)


class Run(RunFolder):
    """The results of a run: of `cw.fit`, of `cw.run`, or of a run folder. They are read-only.

    - `run.weights`: a frame with the weight of every client in every round.
    - `run.why("west")`: why a client has its weight, in words.
    - `run.module`: the trained network; `run.predict(x)`: its predictions.
    - `run.report()`: one HTML page with figures and tables beside it.
    - `run.model("AdaFed")`: the trained network of one of several methods.
    - `run.predictor("AdaFed").predict(frame)`: predictions for new rows of a table.
    - `run.frame("rounds")`: everything that was recorded, as pandas frames (docs/frames.md).
    - `run.facts`, `run.lanes`, `run.methods`, `run.config`: about the whole run.
    - `run.figure()`: a figure. A notebook shows a run as a table and a figure, a Python session
      as text.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        name: str | None = None,
        *,
        module: OwnNetwork | None = None,
    ) -> None:
        """Open a run folder.

        Args:
            folder: the folder. The run may still be going.
            name: what pages and comparisons call it; by default the folder's name.
            module: your own network, where the run was given one: a module, or a function that makes one.
        """
        super().__init__(Path(folder), name)
        self._own = None if module is None else OwnModel(module)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def weights(self) -> Any:
        """The weights as a pandas frame: a row per client, a column per round; the mean over the seeds.

        A client that did not take part in a round has no value, one whose update was refused has 0. Of
        several methods, the rows are (method, client).
        """
        rows = self.frame("weights")
        rows.loc[rows["refusal"].notna(), "weight"] = 0.0
        rows["client"] = rows["client"].where(rows["name"].isna(), rows["name"])
        keys = ["client"] if len(self.methods) == 1 else ["method", "client"]
        return rows.pivot_table("weight", keys, "round", sort=False)

    def why(
        self,
        client: str | int,
        method: str | None = None,
        seed: int | None = None,
        round_num: int | None = None,
        *,
        round: int | None = None,
        details: bool = False,
    ) -> Sentences:
        """Why a client has its share of a round's model, in at most six lines per method, the answer first.

        Args:
            client: its name, or its number.
            method: the method; by default all of them.
            seed: the seed; by default the first one.
            round_num: the round; by default the last one in which the client took part.
            round: another name for `round_num`.
            details: whether to add how weights are computed, with all parameters.
        """
        from .report.audit import why

        methods = self.methods if method is None else [method]
        chosen = round_num if round is None else round
        texts = []
        for one in methods:
            number = self.first_seed(one) if seed is None else seed
            texts.append(why(self, client, one, number, chosen, details=details))
        return Sentences("\n".join(texts))

    @property
    def module(self) -> nn.Module:
        """The trained network, in eval mode; of several seeds, the first one's."""
        return self.model(self._only_method("module"))

    def predict(self, inputs: Any, method: str | None = None, seed: int | None = None) -> Any:
        """Predictions of a trained network for new samples.

        Args:
            inputs: as clients have them: an array or tensor [N, ...], a dictionary of several inputs by name, or
                a PyTorch dataset; of a table, a frame or a CSV file.
            method: whose network; may be left out where there is one.
            seed: the seed; by default the first one.

        Returns:
            A NumPy array: the classes [N], or the numbers or risks. Of a table, a frame; see `Predictor.predict`.
        """
        if method is None:
            method = self._only_method("predict")
        if seed is None:
            seed = self.first_seed(method)
        network = self.model(method, seed)
        about = self.model_facts(seed)
        if about.table is not None:
            return self.predictor(method, seed).predict(inputs)
        return predict_samples(network, inputs, about)

    def report(
        self, out: str | Path | None = None, figures: Collection[Literal["pdf", "png", "svg"]] = ()
    ) -> Path:
        """Write the report: one HTML page, and beside it tables (CSV, LaTeX).

        Args:
            out: the folder; by default `report` in the run folder.
            figures: the formats in which all figures are drawn as files, too.

        Returns:
            The page.
        """
        from .report.page import write_report

        target = Path(out or self.folder / "report")
        return write_report([self], target, [*figures])

    def _only_method(self, what: str) -> str:
        """The method, where there is one."""
        if len(self.methods) != 1:
            names = listed(self.methods)
            raise RunError(
                f"{self.id}: run.{what} needs one method, and there are {len(self.methods)} ({names}): "
                "run.model(METHOD) is the network of one, and run.predict takes method="
            )
        return self.methods[0]

    def figure(self, chart: str | None = None) -> altair.TopLevelMixin:
        """A chart of the report as an Altair chart, which you can change, and save as PNG, SVG or PDF.

        Args:
            chart: its name, "loss" say; by default the metric over the rounds.
        """
        with needing("report", "run.figure"):
            import altair

        from .report.charts import figure
        from .report.items import Chart
        from .report.page import report_sections
        from .report.results import Results

        chosen = chart or "metric"
        results = Results([self])
        items = [item for found in report_sections(results).values() for item in found]
        charts = {item.id: item for item in items if isinstance(item, Chart)}
        if chosen not in charts:
            raise ClientwiseError(
                f"{self.id}: there is no chart {chosen!r}{suggest(chosen, charts)}"
            )
        methods = [one.label for one in results.methods]
        return altair.Chart.from_dict(figure(charts[chosen], methods))

    def __repr__(self) -> str:
        from .report.terminal import run_text

        try:
            return run_text(self)
        except RunError:
            return f"Run({str(self.folder)!r}): cannot be read"

    def _repr_html_(self) -> str:
        """What a notebook shows: the result in words, as a table and as a figure."""
        from .report.terminal import run_html

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
                the trained numbers, or a function that makes one. What `cw.fit` and `cw.run` return has it.
            after: the round whose model to load, or "best" (see `keep` and `keep_every` in the config); by
                default the last one, or the best with `keep = "best"`.
        """
        if seed is None:
            seed = self.first_seed(method)
        _, tensors = self._trained(method, seed, after)
        network = self._made(seed, module)
        try:
            return fill(network, tensors, self.model_facts(seed).frozen).eval()
        except ValueError as error:
            message = f"{self.id}: its model does not fit this network ({error})"
            raise RunError(message) from None

    def predictor(
        self,
        method: str,
        seed: int | None = None,
        module: OwnNetwork | None = None,
        *,
        after: After = None,
    ) -> Predictor:
        """The trained network with the columns, categories and classes of the table it was trained on.

        Args:
            method: as for `model`, like the other arguments.
            seed: the seed; by default the first one.
            module: your own network, where the run was given one.
            after: the round.
        """
        if seed is None:
            seed = self.first_seed(method)
        about = self.model_facts(seed)
        network = self.model(method, seed, module, after=after)
        try:
            return predictor(network, about.kind, about.table, about.outputs)
        except ValueError as error:
            raise RunError(f"{self.id}: cannot be used to predict: {error}") from None

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

        `cw.load` reads the file. Where the data are a table, it contains what predictions for new rows
        need: the columns, their categories, means and deviations, and the classes. Without `onnx`,
        nothing that the run's config names is imported.

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
        if onnx:
            with needing("onnx", "ONNX"):
                import_module("onnxscript")  # PyTorch needs it to write ONNX
        round_num, tensors = self._trained(method, seed, after)
        name = self._file_name(method, seed)
        if after is not None:
            name += f"-round{round_num}"
        path = Path(folder) / f"{name}{ENDING}"
        make_folder(path.parent)
        header = self._model_header(method, seed, round_num)
        write_model(path, tensors, header)
        if not onnx:
            return [path]
        network = self.model(method, seed, module, after=after)
        return [path, _write_onnx(network, header, path.with_suffix(".onnx"))]

    def first_seed(self, method: str) -> int:
        """The seed that a method ran first."""
        self._refuse_unknown(method)
        return self.seeds(method)[0]

    def has_model(self, method: str) -> bool:
        """Whether a method trains one model for all clients, not one for each."""
        return self.about(method).control != "alone"

    def _trained(self, method: str, seed: int, after: After) -> tuple[int, dict[str, Tensor]]:
        if not self.has_model(method):
            message = f"{method} has no model: every client keeps one of its own"
            raise RunError(f"{self.id}: {message}")
        return self.trained(method, seed, after)

    def _made(self, seed: int, module: OwnNetwork | None) -> nn.Module:
        """The network, with frozen parameters as in the run: those of its first seed."""
        if isinstance(module, nn.Module):
            return module
        (first, *_) = self.config.get("seeds") or [seed]
        return initialised(self._network(seed, module), first).float()  # as it was trained

    def _network(self, seed: int, own: Callable[..., nn.Module] | None) -> Callable[[], nn.Module]:
        """A function that makes the network that was trained."""
        about = self.model_facts(seed)
        made = self._own if own is None else OwnModel(own)
        if made is not None:
            return partial(made, about.network_shape, about.outputs)
        part = load_experiment(self.folder / "config.toml").model
        if part is None:
            fills = f"run.model(..., module={about.name}) fills it, cw.Run(..., module={about.name}) keeps it"
            raise RunError(f"{self.id}: was given a network of your own: {fills}")
        return partial(make(MODELS, part), about.network_shape, about.outputs)

    def _file_name(self, method: str, seed: int) -> str:
        """The name of an exported model, with a number where methods have the same plain name."""
        plain = plain_name(method)
        alike = [name for name in self.methods if plain_name(name) == plain]
        if len(alike) > 1:
            plain = f"{plain}-{alike.index(method) + 1}"
        return f"{plain}-seed{seed}"

    def _model_header(self, method: str, seed: int, round_num: int) -> ModelHeader:
        facts = self.model_facts(seed)
        network = self.config.get("model")
        return ModelHeader(
            run=self.facts.name,
            method=method,
            seed=seed,
            round=round_num,
            model=facts.name,
            input_shape=facts.input_shape,
            outputs=facts.outputs,
            input_scale=facts.scale,
            network=network,
            kind=facts.kind,
            table=facts.table,
            named_shapes=facts.named_shapes,
            frozen=facts.frozen,
        )


class FinishedRun(Run):
    """What `cw.run` returns. Until 0.4.0, it can also be used as the path that `cw.run` returned in 0.2.0.

    The folder is read when it is first asked for something: until then, nothing but the run has opened it.
    """

    def __init__(self, folder: Path, *, module: OwnNetwork | None = None) -> None:
        self.folder = folder
        self._given = module

    def __getattr__(self, name: str) -> Any:
        if name == "folder" or name.startswith("__"):
            raise AttributeError(f"a Run has no attribute {name!r}")
        if name != "name" and hasattr(self.folder, name):
            return getattr(self.folder, name)
        if "lanes" not in vars(self):
            super().__init__(self.folder, module=self._given)
            return getattr(self, name)
        raise AttributeError(f"a Run has no attribute {name!r}")

    def __str__(self) -> str:
        return str(self.folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathLike) and self.folder == Path(other)

    def __hash__(self) -> int:
        return hash(self.folder)


def _write_onnx(network: nn.Module, header: ModelHeader, path: Path) -> Path:
    """Write a network as ONNX: on a table, it takes the columns and returns predictions."""
    if header.named_shapes:
        raise ClientwiseError(
            f"{header.model}: a network with several inputs is not written as ONNX"
        )
    samples = torch.zeros(2, *header.input_shape)
    names = ("samples", "outputs")
    if header.table is not None:
        network = predictor(network, header.kind, header.table, header.outputs)
        samples = torch.zeros(2, len(header.table.columns), dtype=torch.float64)
        names = ("columns", "predictions")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about PyTorch's own code
            program = torch.onnx.export(
                network,
                (samples,),
                input_names=[names[0]],
                output_names=[names[1]],
                dynamic_shapes=({0: torch.export.Dim("count")},),  # any number of samples
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).splitlines()[0]
        raise ClientwiseError(f"{header.model}: cannot be written as ONNX ({reason})") from None
    assert program is not None
    program.model.metadata_props.update(metadata_of(header))
    with replacing(path) as temporary:
        program.save(temporary, external_data=False)
    return path
