"""An experiment as its config describes it. docs/config.md is generated from these classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, Field, PrivateAttr

from ...core.method import Method
from ...data.datasets import DATASETS
from ...data.features import FEATURES
from ...data.federated import Samples
from ...data.partition import PARTITIONS
from ...errors import ConfigError
from ...models.modules import OwnModel
from ...models.networks import MODELS
from ...registry import NonNegativeFloat, Part, PositiveInt
from ..config_file import unmeant
from ..trackers import TRACKERS
from .methods import MethodSettings
from .parts import Given, PartOf, read_part
from .settings import (
    Cohorts,
    DeviceSettings,
    EvaluationSettings,
    FlowerSettings,
    HostileClients,
    ServerSet,
    Training,
)
from .tables import MOST_PLUGINS, ConfigTable, DeviceName, Name, Seeds, refuse


def _written_out(method: Any) -> Any:
    """Names of methods are written out before this table is validated, unless there is no such method."""
    reason = unmeant(method)
    if reason is not None:
        refuse([reason])
    return method


class Experiment(ConfigTable):
    """An experiment. Methods of one seed share data, partition, initial model and cohorts."""

    name: Name = "run"
    """Name of the experiment. Default: that of the file."""

    rounds: PositiveInt
    """Rounds per method and seed."""

    seeds: Seeds = [1]
    """Random seeds: `[1, 2, 3]` or `"1-5, 9"`. Every method runs with each."""

    plugins: Annotated[list[str], Field(max_length=MOST_PLUGINS)] = []
    """Python modules with your own parts, installed or in `plugin_dir`."""

    plugin_dir: str | None = None
    """Folder of plugins and data files. Default: that of the config."""

    engine: Literal["local", "flower"] = "local"
    """Clients run in this process, or are simulated by Flower."""

    checkpoint_seconds: NonNegativeFloat = 10.0
    """Least seconds between two checkpoints. 0: one after every round."""

    keep: Literal["last", "best"] = "last"
    """The model to use. "best": that with the lowest loss on the samples the server weighs by."""

    initial_model: str | None = None
    """File of `clientwise export` with the initial model. Default: random."""

    device: DeviceName = "auto"
    """"cpu", "cuda" or "cuda:1". "auto": the GPU if there is one."""

    mode: Literal["auto", "loop", "graph", "stacked"] = "auto"
    """Clients train one by one ("loop"), likewise as CUDA graphs ("graph"), or many at once
    ("stacked")."""

    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """Precision of matrix products. "auto": tf32 on a GPU, else float32."""

    workers: Annotated[int, Field(gt=0, le=1024)] | Literal["auto", "ray"] = "auto"
    """CPU cores that train clients. "auto": PyTorch's threads. "ray": a cluster (docs/performance.md)."""

    data_dir: str | None = None
    """Data folder. Default: $CLIENTWISE_DATA, or `plugin_dir` for your own files. Prefer --data-dir."""

    trackers: Annotated[list[Annotated[Part, PartOf(TRACKERS)]], Field(max_length=100)] = []
    """Tools that the run is also logged to."""

    data: Annotated[Part, PartOf(DATASETS)] | None = None
    """The dataset. Omit it where you pass yours to `cw.run`."""

    features: Annotated[Part, PartOf(FEATURES)] | None = None
    """A frozen network whose features replace the images."""

    partition: Annotated[Part, PartOf(PARTITIONS)] | None = None
    """Division of samples among clients."""

    attributes: dict[str, list[bool | float]] = {}
    """Facts about clients, a value each, for criteria such as `attribute`."""

    model: Annotated[Part, PartOf(MODELS)] | None = None
    """The network that clients train."""

    training: Training = Training()
    """How clients train."""

    federation: Cohorts = Cohorts()
    """Which clients a round asks."""

    server_set: ServerSet = ServerSet()
    """The server's held-out samples."""

    evaluation: EvaluationSettings = EvaluationSettings()
    """Measurements during a run."""

    devices: DeviceSettings | None = None
    """Simulated devices. Default: none."""

    flower: FlowerSettings = FlowerSettings()
    """Clients reached through Flower."""

    hostile: Annotated[list[HostileClients], Field(max_length=1_000)] = []
    """Groups of hostile or faulty clients."""

    methods: Annotated[
        list[Annotated[MethodSettings, BeforeValidator(_written_out)]],
        Field(min_length=1, max_length=1_000),
    ] = [MethodSettings(name="FedAvg")]
    """The methods to compare. Default: `Recommended`; `RecommendedJudged` with server_set.source =
    "clients"; without held-out samples `FedAvg`."""

    _source: str = PrivateAttr("config")
    _names_methods: bool = PrivateAttr(True)
    _own_model: OwnModel | None = PrivateAttr(None)
    _own_samples: Samples | None = PrivateAttr(None)
    _given: Given = PrivateAttr({})

    @property
    def source(self) -> str:
        """The file of the config, for messages."""
        return self._source

    @property
    def own_model(self) -> OwnModel | None:
        """The network that was passed in, which no config can hold."""
        return self._own_model

    @property
    def own_samples(self) -> Samples | None:
        """The samples that were passed in instead of a dataset by name."""
        return self._own_samples

    @property
    def given(self) -> Given:
        """The parts that were given in Python instead of a name."""
        return self._given

    def register_given(self) -> None:
        """Let names stand for what they stood for when this config was read."""
        try:
            for name, (registry, made) in self._given.items():
                registry.adopt(name.removeprefix(f"{registry.kind} "), made)
        except ValueError as error:
            raise ConfigError(self.source, [("", f"{error}; give your own another name")]) from None

    @property
    def has_own_files(self) -> bool:
        """Whether the dataset is read from files of the user's own: an option of it is a path."""
        options = DATASETS.options(self.data.name) if self.data else ()
        return any(option.type is Path for option in options)

    @property
    def model_name(self) -> str:
        """The name of the network."""
        if self.own_model:
            return self.own_model.name
        return self.model.name if self.model else "none"

    @property
    def server_holds_samples(self) -> bool:
        """Whether samples are held out for the server."""
        return self.evaluation.official_test == "server" or self.server_set.fraction > 0

    @property
    def clients_test(self) -> bool:
        """Whether clients have test sets of their own."""
        return self.evaluation.official_test == "clients" or self.evaluation.test_fraction > 0

    @property
    def recommended(self) -> str:
        """The default method: the best that the held-out samples allow (docs/evidence.md)."""
        if self.server_set.source == "clients":
            return "RecommendedJudged"
        if self.server_holds_samples or self.server_set.source == "contributed":
            return "Recommended"
        return "FedAvg"

    def with_model(self, model: OwnModel) -> Experiment:
        """The same with a network of the user's own instead of one by name."""
        changed = self.model_copy(update={"model": None})
        changed._own_model = model
        return changed

    def with_samples(self, samples: Samples) -> Experiment:
        """The same with samples of the user's own; by default their client ids divide them."""
        partition = self.partition or read_part(PARTITIONS, "by_id")
        changed = self.model_copy(update={"data": None, "partition": partition})
        changed._own_samples = samples
        return changed

    def with_method(self, method: Mapping[str, Any]) -> Experiment:
        """The same with this method, where the config names none."""
        changed = self.model_copy(update={"methods": [MethodSettings.model_validate(method)]})
        changed._names_methods = False
        return changed

    def for_data(self, weigh: object | None) -> Experiment:
        """The same for the user's own data: without samples to weigh by, the default is FedAvg."""
        server = self.server_set
        has_samples = weigh is not None or server.source != "held_out" or server.shared_set
        if has_samples or self._names_methods:
            return self
        return self.with_method({"name": "FedAvg"})

    def build_methods(self) -> list[Method]:
        """All methods, ready to run."""
        return [method.build(self.training) for method in self.methods]

    def to_toml(self) -> str:
        """The resolved config as TOML."""
        return tomli_w.dumps(self.to_dict())
