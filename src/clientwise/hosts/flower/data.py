"""The data of a deployment: every party has its own file and reads no other."""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy
import torch

from ...core.objective.problem import Regression
from ...data.datasets import DataError
from ...data.encoding import Encoding
from ...data.federated import FederatedData, Holdings
from ...data.npz import check_attributes, inputs_and_targets, read_npz
from ...data.table import ENDINGS, Encoder, read_samples
from ...errors import ConfigError
from ...experiment.build.data import build_data, load_samples, scored
from ...experiment.checks.combinations import deployment_issues
from ...experiment.config.schema import Experiment
from ...experiment.config.settings import MemberTable
from ...experiment.load import load_experiment
from ...writing import replacing

Config = str | Path | Mapping[str, Any]
_Arrays = tuple[numpy.ndarray, numpy.ndarray]  # inputs or values, and targets
DATA_KEYS = ("files", "loader")  # keys of the config, and of Flower's run config


@dataclass(frozen=True)
class OwnData:
    """What one node holds: (inputs, targets) to train on and to test on, as the model sees them."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    # Facts about the training samples
    sample_attributes: Mapping[str, Any] = field(default_factory=dict)


def load_npz(path: str) -> OwnData:
    """Arrays train_inputs, train_targets, test_inputs, test_targets of a NumPy file.

    Other arrays are sample attributes.
    """
    arrays = read_npz(Path(path))
    parts = inputs_and_targets(arrays, ("train", "test"), path)
    used = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    attributes = {name: array for name, array in arrays.items() if name not in used}
    check_attributes(attributes, len(parts["train"][0]), path)
    return OwnData(parts["train"], parts["test"], attributes)


def load_table(path: str, config: Config | Experiment) -> OwnData:
    """The rows of a CSV, TSV or Parquet file, as `flower.table` of the config describes them.

    About `evaluation.test_fraction` of the rows are for testing: a hash of a row's content decides.
    """
    experiment = _read(config)
    encoding = _member_table(experiment).encoding()
    found = read_samples(Path(path), encoding)
    train, test = _split(found, experiment.evaluation.test_fraction)
    return OwnData(_encoded(train, encoding), _encoded(test, encoding))


def _encoded(rows: _Arrays, encoding: Encoding) -> _Arrays:
    """Inputs and targets of rows."""
    values, targets = rows
    return Encoder(encoding.columns)(torch.as_tensor(values)).numpy(), targets


def _split(found: _Arrays, fraction: float) -> tuple[_Arrays, _Arrays]:
    """The rows in two parts, of which the second has about a fraction of them."""
    values, targets = found
    draws = []
    for row, target in zip(values, targets, strict=True):
        digest = hashlib.blake2b(row.tobytes() + target.tobytes(), digest_size=8).digest()
        draws.append(int.from_bytes(digest, "big") / 2**64)
    second = numpy.array(draws) < fraction
    return (values[~second], targets[~second]), (values[second], targets[second])


def _read(config: Config | Experiment) -> Experiment:
    if isinstance(config, Experiment):
        return config
    return load_experiment(config, replaced={"initial_model": None})


def _member_table(experiment: Experiment) -> MemberTable:
    if experiment.flower.table is None:
        hint = "is needed to read tables: it describes their columns"
        raise ConfigError(experiment.source, [("flower.table", hint)])
    return experiment.flower.table


def server_side(experiment: Experiment, path: str) -> FederatedData:
    """The data of a deployment's server: its own samples, if it has any, and none of clients.

    The file holds the arrays weigh_inputs and weigh_targets, report_inputs and report_targets;
    either pair is optional. With `flower.table` it may be a table, of which one half is for weighing.
    """
    parts = _server_parts(path, experiment)
    issues = deployment_issues(experiment)
    if "report" not in parts and experiment.evaluation.clients_every != 1:
        hint = "must be 1: nodes evaluate the model only in the rounds that it names, and without "
        hint += "report_inputs in the server's samples every round needs an evaluation"
        issues.append(("evaluation.clients_every", hint))
    if issues:
        raise ConfigError(experiment.source, issues)
    return data_held_by(experiment, {}, parts)


def from_files(experiment: Experiment) -> FederatedData:
    """All members' files on one machine, to try a deployment.

    They are read by the loader that the nodes would use.
    """
    settings = experiment.flower
    assert settings.files is not None
    if issues := deployment_issues(experiment):
        raise ConfigError(experiment.source, issues)
    folder = Path(settings.files)
    load: Callable[[str], OwnData] = load_npz
    if settings.loader:
        load = loader_in(settings.loader)
    elif settings.table:
        load = partial(load_table, config=experiment)
    held = {}
    for client, name in enumerate(settings.clients):
        held[client] = load(str(_file_of(folder, name)))
    servers = sorted(folder.glob("server.*"))
    parts = _server_parts(str(servers[0]), experiment) if servers else {}
    return data_held_by(experiment, held, parts)


def found_by(experiment: Experiment, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the files and the loader of Flower's run config.

    A bundle does not contain them.
    """
    given = {key: str(run_config[key]) for key in DATA_KEYS if run_config.get(key)}
    return experiment.model_copy(update={"flower": experiment.flower.model_copy(update=given)})


def loader_in(path: str) -> Callable[[str], OwnData]:
    """The function `load` of a Python file."""
    try:
        found = runpy.run_path(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be used to read data: {error.strerror}") from None
    if "load" not in found:
        raise DataError(f"{path}: cannot be used to read data: it has no function `load`")
    load: Callable[[str], OwnData] = found["load"]
    return load


def _file_of(folder: Path, name: str) -> Path:
    """A member's file or folder: NAME, or NAME with any ending."""
    if (folder / name).exists():
        return folder / name
    found = sorted(folder.glob(f"{escape(name)}.*"))
    if not found:
        raise DataError(f"{folder}: has no file or folder for {name}")
    if len(found) > 1:
        raise DataError(f"{folder}: has more than one file or folder for {name}")
    return found[0]


def _server_parts(path: str, experiment: Experiment) -> dict[str, tuple[Any, Any]]:
    if path.endswith(ENDINGS):
        encoding = _member_table(experiment).encoding()
        halves = _split(read_samples(Path(path), encoding), 0.5)
        weigh, report = (_encoded(half, encoding) for half in halves)
        return {"weigh": weigh, "report": report}
    arrays = read_npz(Path(path)) if path else {}
    parts = [part for part in ("weigh", "report") if f"{part}_inputs" in arrays]
    return inputs_and_targets(arrays, parts, path)


def data_held_by(
    experiment: Experiment, held: Mapping[int, OwnData], server: Mapping[str, tuple[Any, Any]]
) -> FederatedData:
    """Federated data in which only the clients of `held` have samples."""
    settings = experiment.flower
    shape = settings.sample_shape
    classes = settings.class_count
    target_type = torch.int64 if classes else torch.float32
    nothing = (torch.zeros(0, *shape), torch.zeros(0, dtype=target_type))
    blocks = [block for own in held.values() for block in (own.train, own.test)] + list(
        server.values()
    )
    for inputs, targets in blocks:
        if tuple(inputs.shape[1:]) != shape:
            raise DataError(
                f"samples of shape {tuple(inputs.shape[1:])}, but flower.input_shape = {list(shape)}"
            )
        if torch.as_tensor(targets).is_floating_point() == bool(classes):
            raise DataError(f"targets of type {targets.dtype}, but flower.num_classes = {classes}")
    clients = range(len(settings.clients))
    names = {name for own in held.values() for name in own.sample_attributes}
    for client, own in held.items():
        if missing := sorted(names - own.sample_attributes.keys()):
            raise DataError(
                f"{settings.clients[client]} has no array {missing[0]}, but other members have one"
            )
    data = FederatedData.from_clients(
        [held[client].train if client in held else nothing for client in clients],
        [held[client].test if client in held else nothing for client in clients],
        num_classes=classes or None,
        problem=None if classes else Regression.kind,
        sample_attributes={
            name: [
                held[client].sample_attributes[name] if client in held else [] for client in clients
            ]
            for name in names
        },
        weigh=server.get("weigh"),
        report=server.get("report"),
        names=settings.clients,
    )
    encoding = settings.table.encoding() if settings.table else None
    samples = replace(data.samples, table=encoding)
    return replace(data, samples=scored(experiment, samples))


def write_parts(config: Config, folder: str | Path) -> list[Path]:
    """Write the partition of a config as the files that a deployment reads.

    Use it to try a deployment with data that are still in one place. Writes NAME.npz for each of
    `flower.clients`, and server.npz; returns their paths.
    """
    experiment = load_experiment(config)
    data, _ = build_data(experiment, load_samples(experiment), experiment.seeds[0])
    names = experiment.flower.clients
    if len(names) != data.num_clients:
        hint = f"{len(names)} names for the {data.num_clients} clients of the partition"
        raise ConfigError(experiment.source, [("flower.clients", hint)])

    def arrays(part: str, holdings: Holdings, holder: int) -> dict[str, Any]:
        held = holdings.slice(holder)
        samples, indices = data.samples, holdings.indices[held]
        inputs = samples.inputs[indices] if samples.scale == 1 else samples.batch(indices)
        return {f"{part}_inputs": inputs.numpy(), f"{part}_targets": holdings.targets[held].numpy()}

    def attributes(holder: int) -> dict[str, Any]:
        indices = data.train.indices[data.train.slice(holder)]
        return {
            name: values[indices].numpy() for name, values in data.samples.sample_attributes.items()
        }

    Path(folder).mkdir(parents=True, exist_ok=True)
    files = {
        name: {**arrays("train", data.train, k), **arrays("test", data.test, k), **attributes(k)}
        for k, name in enumerate(names)
    }
    server = [
        (part, holdings)
        for part, holdings in (("weigh", data.weigh), ("report", data.report))
        if holdings
    ]
    files["server"] = {
        name: array
        for part, holdings in server
        for name, array in arrays(part, holdings, 0).items()
    }
    for name, content in files.items():
        with replacing(Path(folder) / f"{name}.npz") as temporary, temporary.open("wb") as file:
            numpy.savez(file, **content)
    return [Path(folder) / f"{name}.npz" for name in files]
