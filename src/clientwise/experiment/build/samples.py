"""The samples of an experiment, and how they are divided among clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...data.datasets import DATASETS, DataError
from ...data.division import Division, client_names, divide
from ...data.features import with_features
from ...data.federated import FederatedData, Samples
from ...data.partition import PARTITIONS
from ...engine.device import pick_device
from ...errors import ClientwiseError, ConfigError
from ...registry import Part
from ..config.parts import make
from ..config.schema import Experiment
from ..config_file import DATA_FOLDER

MISSING = {
    "data": "is missing; it may be left out only where arrays are passed to `cw.run`",
    "partition": 'is missing; write partition = "by_id" where the data names its clients (a table does, by its '
    'files or its `client` column), or let clientwise divide it: partition = { name = "iid", clients = 10 }',
}


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before it is divided among clients."""
    if experiment.own_samples is not None:
        return scored(experiment, experiment.own_samples)
    missing = [key for key in MISSING if getattr(experiment, key) is None]
    if missing or experiment.data is None:
        raise ConfigError(experiment.source, [(key, MISSING[key]) for key in missing])
    folder = data_folder(experiment)
    where = f"{experiment.source}: data"
    try:
        samples = _loaded(experiment, experiment.data, folder)
        if samples.after_partition is None:
            samples.check_finite()
        return scored(experiment, samples)
    except DataError as error:  # it names the file, but not the config
        raise DataError(f"{where}: {error}{_beside_config(experiment)}") from None
    except (ClientwiseError, OSError, MemoryError):
        raise
    except Exception as error:  # a user's own dataset may raise anything
        message = f"{where}: {experiment.data.name}: {type(error).__name__}: {error}"
        if folder is None:
            message += (
                "; no data folder is set: `data_dir` in the config, --data-dir or CLIENTWISE_DATA"
            )
        raise DataError(message) from error


def data_folder(experiment: Experiment) -> Path | None:
    """The data folder, if one is set."""
    given = experiment.data_dir or os.environ.get(DATA_FOLDER)
    return Path(given) if given else None


def _beside_config(experiment: Experiment) -> str:
    """What to do where the files are not in the data folder, but beside the config."""
    files = experiment.data.options.get("files") if experiment.data else None
    if not isinstance(files, str) or not Path(experiment.source).is_file():
        return ""
    folder = Path(experiment.source).parent
    searched = data_folder(experiment) or Path()
    if _matches(searched, files) or not _matches(folder, files):
        return ""
    return f'; {folder / files} is beside the config: add data_dir = "." to it'


def _matches(folder: Path, pattern: str) -> bool:
    """Whether a folder has files of this pattern; not where it is an absolute path, or no pattern."""
    try:
        return any(folder.glob(pattern))
    except (ValueError, NotImplementedError, OSError):
        return False


def _loaded(experiment: Experiment, data: Part, folder: Path | None) -> Samples:
    load: Callable[[], Samples] = partial(make(DATASETS, data), folder)
    if experiment.features is None:
        return load()
    return with_features(data, experiment.features, folder, pick_device(experiment.device), load)


def scored(experiment: Experiment, samples: Samples) -> Samples:
    """The samples with the metric that the experiment asks for."""
    return replace(samples, problem=samples.problem.by(experiment.evaluation.metric))


def names_of(divided: FederatedData | Division, samples: Samples) -> tuple[str, ...]:
    """The names of the clients, where they have names."""
    if isinstance(divided, FederatedData):
        return divided.names
    return client_names(samples, divided.train)


def count_clients(experiment: Experiment) -> int:
    """The number of clients, under the seed that has most."""
    samples = load_samples(experiment)
    return max(len(divide_samples(experiment, samples, seed).train) for seed in experiment.seeds)


def divide_samples(experiment: Experiment, samples: Samples, seed: int) -> Division:
    """Divide the samples among the clients under this seed."""
    assert experiment.partition is not None
    wanted = experiment.partition.options.get("clients") or 0
    if wanted > len(samples.targets):  # checked before anything of that size is made
        message = f"too many clients for {len(samples.targets)} samples"
        raise ConfigError(experiment.source, [(f"partition.clients = {wanted}", message)])
    official = experiment.evaluation.official_test
    if official != "pooled" and samples.test_from is None:
        key = f"evaluation.official_test = {official!r}"
        message = 'must be "pooled": this dataset has no official test split'
        raise ConfigError(experiment.source, [(key, message)])
    try:
        return divide(
            samples,
            make(PARTITIONS, experiment.partition),
            seed,
            test_fraction=experiment.evaluation.test_fraction,
            server_fraction=experiment.server_set.fraction,
            official_test=official,
        )
    except ValueError as error:
        raise ConfigError(experiment.source, [("partition", str(error))]) from None
