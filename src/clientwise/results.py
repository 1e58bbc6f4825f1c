"""A run in Python: its frames, figures and trained networks. `cw.load` opens it, and what else a path may name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas
from torch import Tensor, nn

from .errors import ClientwiseError, RunError, needing
from .experiment.config.parts import make, read_part
from .experiment.load import import_plugins, load_experiment
from .models.flat import fill
from .models.modules import OwnModel, OwnNetwork
from .models.networks import MODELS, initialised
from .prediction import load_predictor, predict_samples, predictor
from .record.facts import RunFacts
from .record.files import plain_name
from .record.models import ENDING, ModelHeader, write_model
from .record.run import RunFolder
from .registry import listed
from .writing import make_folder

if TYPE_CHECKING:
    import altair


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
    *,
    module: OwnNetwork | None = None,
) -> Any:
    """Open what is at a path: a run folder (`Run`), a trained model (`Predictor`) or a config (for `cw.run`).

    Args:
        source: a run folder, a file that `clientwise export` wrote, a TOML file, or a dictionary of its shape.
        overrides: of a config, texts `key=value` as in `--set`.
        replaced: of a config, values for keys of the top level. They win over `overrides`.
        preset: of a config, one of its presets.
        module: of a run or a model, your own network: a module, or a function that makes one.

    Example:
        >>> import clientwise as cw
        >>> config = {"data": "digits", "partition": {"name": "iid", "clients": 5}, "model": "linear"}
        >>> cw.load({**config, "rounds": 3}).rounds
        3
    """
    if isinstance(source, Mapping):
        return load_experiment(source, overrides, replaced, preset)
    path = Path(source)
    if path.is_dir():
        return Run(path, module=module)
    if path.suffix == ENDING:
        return load_predictor(path, module)
    if path.suffix == ".toml":
        return load_experiment(path, overrides, replaced, preset)
    raise ClientwiseError(
        f"{path}: must be a run folder, a config (.toml) or a trained model ({ENDING})"
    )


class Sentences(str):
    """A text that a Python session shows line by line."""

    def __repr__(self) -> str:
        return str(self)


class Run:
    """The results of a run: of `cw.fit`, of `cw.run`, or of a run folder. They are read-only.

    A notebook shows a run as a table and a figure, a Python session as text. The examples are of a run of
    `cw.fit` with the clients north, east, south and west; the labels of west are wrong.

    Attributes:
        folder: the run folder.
    """

    def __init__(self, folder: str | PathLike[str], *, module: OwnNetwork | None = None) -> None:
        """Open a run folder.

        Args:
            folder: the folder. The run may still be going.
            module: your own network, where the run was given one: a module, or a function that makes one.
        """
        self.folder = Path(folder)
        self._own = None if module is None else OwnModel(module)
        _ = self._record  # an error at once where there is no run

    @classmethod
    def _later(cls, folder: Path, module: OwnNetwork | None) -> Run:
        """A run whose folder is read when it is first asked for something: `on_round` may not ask."""
        run = cls.__new__(cls)
        run.folder = folder
        run._own = None if module is None else OwnModel(module)
        return run

    @cached_property
    def _record(self) -> RunFolder:
        return RunFolder(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def facts(self) -> RunFacts:
        """What holds for the whole run; docs/frames.md.

        Example:
            >>> run.facts.metric, run.facts.rounds
            ('accuracy', 5)
        """
        return self._record.facts

    @property
    def methods(self) -> list[str]:
        """The methods in the order they ran.

        Example:
            >>> run.methods
            ['Recommended']
        """
        return self._record.methods

    @property
    def lanes(self) -> pandas.DataFrame:
        """How far every method and seed is.

        Example:
            >>> run.lanes[["method", "seed", "rounds"]].to_numpy().tolist()
            [['Recommended', 1, 5]]
        """
        return self._record.lanes

    @property
    def finished(self) -> bool:
        """Whether all methods have ended with all seeds.

        Example:
            >>> run.finished
            True
        """
        return self._record.finished

    @property
    def config(self) -> dict[str, Any]:
        """The config with every default; empty where it cannot be read.

        Example:
            >>> run.config["training"]["epochs"]
            1
        """
        return self._record.config

    def frame(self, name: str) -> pandas.DataFrame:
        """What was recorded, as a pandas frame; docs/frames.md lists the columns.

        Args:
            name: "rounds", "weights", "criteria", "local", "refusals", "clients" or "steps".

        Example:
            >>> rounds = run.frame("rounds")
            >>> len(rounds), bool(rounds["metric"].iloc[-1] > 0.8)
            (5, True)
        """
        return self._record.frame(name)

    @property
    def weights(self) -> pandas.DataFrame:
        """The weights before clipping and the rule: a row per client, a column per round; the mean over the seeds.

        The final shares of the model are the column `influence` of `frame("weights")`.

        A client that did not take part in a round has no value, one whose update was refused has 0. Of
        several methods, the rows are (method, client).

        Example:
            >>> run.weights[5].round(2).to_dict()
            {'north': 0.33, 'east': 0.33, 'south': 0.33, 'west': 0.0}
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
        round: int | None = None,
    ) -> Sentences:
        """Why a client has its share of a round's model, in at most six lines per method, the answer first.

        Args:
            client: its name, or its number.
            method: the method; by default all of them.
            seed: the seed; by default the first one.
            round: the round; by default the last one in which the client took part.

        Example:
            >>> print(run.why("west").splitlines()[0])
            west has 0.0% of round 5's model; an equal share is 25.0%.
        """
        from .report.audit import why

        texts = []
        for one in self.methods if method is None else [method]:
            number = self._first_seed(one) if seed is None else seed
            texts.append(why(self._record, client, one, number, round))
        return Sentences("\n".join(texts))

    @property
    def module(self) -> nn.Module:
        """The trained network, in eval mode; of several seeds, the first one's.

        Example:
            >>> run.module.weight.shape
            torch.Size([10, 64])
        """
        return self.model(self._only_method("module"))

    def model(self, method: str, seed: int | None = None) -> nn.Module:
        """The network that a method has trained, in eval mode.

        It is the model after the last round or, with `keep = "best"`, after the best one.
        It is made as the run's config says: the plugins that the config names are imported. A network of your own
        must be given when the run is opened: `cw.load(folder, module=Net)`. What `cw.fit` and `cw.run` return has it.

        Args:
            method: the method.
            seed: the seed; by default the first one.

        Example:
            >>> torch.equal(run.model("Recommended", seed=1).weight, run.module.weight)
            True
        """
        if seed is None:
            seed = self._first_seed(method)
        _, tensors = self._trained(method, seed)
        about = self._record.model_facts(seed)
        network = self._untrained(seed)
        try:
            return fill(network, tensors, about.frozen).eval()
        except ValueError as error:
            message = f"{self._record.id}: its model does not fit this network ({error})"
            raise RunError(message) from None

    def predict(self, inputs: Any, method: str | None = None, seed: int | None = None) -> Any:
        """Predictions of a trained network for new samples.

        Args:
            inputs: as clients have them: an array or tensor [N, ...], a dictionary of several inputs by name, or
                a PyTorch dataset; of a table, a frame or a CSV file.
            method: whose network; may be left out where there is one.
            seed: the seed; by default the first one.

        Returns:
            A NumPy array: the classes [N], or the numbers or risks. Of a table, a frame; see `Predictor.predict`.

        Example:
            >>> run.predict(torch.zeros(3, 64)).shape
            (3,)
        """
        if method is None:
            method = self._only_method("predict")
        if seed is None:
            seed = self._first_seed(method)
        network = self.model(method, seed)
        about = self._record.model_facts(seed)
        if about.table is None:
            return predict_samples(network, inputs, about)
        return predictor(network, about.kind, about.table, about.outputs).predict(inputs)

    def export(self, method: str, seed: int, folder: str | Path) -> Path:
        """Write a method's trained model as named tensors (safetensors).

        `cw.load` reads the file. Where the data are a table, it contains what predictions for new rows
        need: the columns, their categories, means and deviations, and the classes. Nothing that the run's
        config names is imported.

        Args:
            method: the method.
            seed: the seed.
            folder: where the file is written.

        Returns:
            The file.

        Example:
            >>> run.export("Recommended", 1, run.folder / "models").name
            'Recommended-seed1.safetensors'
        """
        round_num, tensors = self._trained(method, seed)
        plain = plain_name(method)
        alike = [one for one in self.methods if plain_name(one) == plain]
        number = f"-{alike.index(method) + 1}" if len(alike) > 1 else ""
        path = Path(folder) / f"{plain}{number}-seed{seed}{ENDING}"
        make_folder(path.parent)
        write_model(path, tensors, self._model_header(method, seed, round_num))
        return path

    def report(
        self, out: str | Path | None = None, figures: Collection[Literal["pdf", "png", "svg"]] = ()
    ) -> Path:
        """Write the report: one HTML page, and beside it tables (CSV, LaTeX).

        Args:
            out: the folder; by default `report` in the run folder. Without `out=`, `cw.fit` has a temporary run folder:
                name a folder here to keep the page.
            figures: the formats in which all figures are drawn as files, too.

        Returns:
            The page.

        Example:
            >>> run.report().name
            'report.html'
        """
        from .report.page import write_report

        target = Path(out or self.folder / "report")
        return write_report([self._record], target, [*figures])

    def figure(self, chart: str = "metric") -> altair.TopLevelMixin:
        """A chart of the report as an Altair chart, which you can change, and save as PNG, SVG or PDF.

        Args:
            chart: its name: "metric" over the rounds, "loss" ...

        Example:
            >>> run.figure().save(run.folder / "metric.png")
        """
        with needing("report", "run.figure"):
            import altair

        from .report.page import figure_of

        return altair.Chart.from_dict(figure_of(self._record, chart))

    def __repr__(self) -> str:
        from .report.terminal import run_text

        try:
            return run_text(self._record)
        except RunError:
            return f"Run({str(self.folder)!r}): cannot be read"

    def _repr_html_(self) -> str:
        """What a notebook shows: the result in words, as a table and as a figure."""
        from .report.terminal import run_html

        return run_html(self._record)

    def _only_method(self, what: str) -> str:
        """The method, where there is one."""
        if len(self.methods) != 1:
            names = listed(self.methods)
            raise RunError(
                f"{self._record.id}: run.{what} needs one method, and there are {len(self.methods)} ({names}): "
                "run.model(METHOD) is the network of one, and run.predict takes method="
            )
        return self.methods[0]

    def _first_seed(self, method: str) -> int:
        self._record.about(method)  # an unknown method is an error
        return self._record.seeds(method)[0]

    def _trained(self, method: str, seed: int) -> tuple[int, dict[str, Tensor]]:
        if self._record.about(method).control == "alone":
            message = f"{method} has no model: every client keeps one of its own"
            raise RunError(f"{self._record.id}: {message}")
        return self._record.trained(method, seed)

    def _untrained(self, seed: int) -> nn.Module:
        """The network, with frozen parameters as in the run: those of its first seed."""
        about = self._record.model_facts(seed)
        make_network: Any = self._own
        if make_network is None:
            import_plugins(self.folder / "config.toml")
            named = self.config.get("model")
            if named is None:
                hint = f"open it with cw.load({str(self.folder)!r}, module={about.name})"
                raise RunError(f"{self._record.id}: was given a network of your own: {hint}")
            make_network = make(MODELS, read_part(MODELS, named))
        (first, *_) = self.config.get("seeds") or [seed]
        made = partial(make_network, about.network_shape, about.outputs)
        return initialised(made, first).float()  # as it was trained

    def _model_header(self, method: str, seed: int, round_num: int) -> ModelHeader:
        facts = self._record.model_facts(seed)
        return ModelHeader(
            run=self.facts.name,
            method=method,
            seed=seed,
            round=round_num,
            model=facts.name,
            input_shape=facts.input_shape,
            outputs=facts.outputs,
            input_scale=facts.scale,
            network=self.config.get("model"),
            kind=facts.kind,
            table=facts.table,
            named_shapes=facts.named_shapes,
            frozen=facts.frozen,
        )
