"""The data of a real federation: each party has its own file, and sees no other."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

import numpy
import torch

from ..data.datasets import DataError
from ..data.federated import FederatedData, Holdings
from ..data.npz import check_attributes, inputs_and_targets, read_npz
from ..errors import ConfigError
from ..experiment.build import build_data, load_samples, scored
from ..experiment.config import load_experiment
from ..experiment.schema import Experiment
from ..experiment.validation import deployment_issues

Config = str | Path | Mapping[str, Any]
PLACES = ("files", "loader")  # keys of the config, and of Flower's run config


@dataclass(frozen=True)
class OwnData:
    """What one node holds: (inputs, targets) to train on and to test on, as the model is to see them."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    sample_attributes: Mapping[str, Any] = field(default_factory=dict)  # facts about the training samples


def load_npz(path: str) -> OwnData:
    """Arrays train_inputs, train_targets, test_inputs, test_targets of a NumPy file; others are sample attributes."""
    arrays = read_npz(Path(path))
    parts = inputs_and_targets(arrays, ("train", "test"), path)
    used = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    attributes = {name: array for name, array in arrays.items() if name not in used}
    check_attributes(attributes, len(parts["train"][0]), path)
    return OwnData(parts["train"], parts["test"], attributes)


def server_side(experiment: Experiment, path: str) -> FederatedData:
    """A federation as its server sees it: nothing of the clients, and the server's own samples if it has any.

    The file holds the arrays weigh_inputs and weigh_targets, report_inputs and report_targets; either pair may lack.
    """
    if issues := deployment_issues(experiment):
        raise ConfigError(experiment.source, issues)
    return data_held_by(experiment, {}, _server_parts(path))


def from_files(experiment: Experiment) -> FederatedData:
    """A whole deployment on one machine, to try it: every member's file, read by the loader that its node would use."""
    settings = experiment.flower
    assert settings.files is not None
    if issues := deployment_issues(experiment):
        raise ConfigError(experiment.source, issues)
    folder, load = Path(settings.files), loader_in(settings.loader) if settings.loader else load_npz
    held = {client: load(str(_file_of(folder, name))) for client, name in enumerate(settings.clients)}
    server = folder / "server.npz"
    return data_held_by(experiment, held, _server_parts(str(server) if server.exists() else ""))


def found_by(experiment: Experiment, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the files and the loader that Flower's run config names: bundles travel without them."""
    given = {key: str(run_config[key]) for key in PLACES if run_config.get(key)}
    return experiment.model_copy(update={"flower": experiment.flower.model_copy(update=given)})


def loader_in(path: str) -> Callable[[str], OwnData]:
    """The `load` of a Python file."""
    try:
        load: Callable[[str], OwnData] = runpy.run_path(path)["load"]
    except (OSError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no function `load`"
        raise DataError(f"{path}: cannot be used to read data: {reason}") from None
    return load


def _file_of(folder: Path, name: str) -> Path:
    """A member's file or folder: NAME, or NAME with whatever ending."""
    found = [folder / name] if (folder / name).exists() else sorted(folder.glob(f"{escape(name)}.*"))
    if len(found) != 1:
        raise DataError(f"{folder}: has {'more than one' if found else 'no'} file or folder for {name}")
    return found[0]


def _server_parts(path: str) -> dict[str, tuple[Any, Any]]:
    arrays = read_npz(Path(path)) if path else {}
    parts = [part for part in ("weigh", "report") if f"{part}_inputs" in arrays]
    return inputs_and_targets(arrays, parts, path)


def data_held_by(
    experiment: Experiment, held: Mapping[int, OwnData], server: Mapping[str, tuple[Any, Any]]
) -> FederatedData:
    """The data of all clients, of which only some are here."""
    settings = experiment.flower
    shape, classes = tuple(settings.input_shape), settings.num_classes
    nothing = (torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64 if classes else torch.float32))
    blocks = [block for own in held.values() for block in (own.train, own.test)] + list(server.values())
    for inputs, targets in blocks:
        if tuple(inputs.shape[1:]) != shape:
            raise DataError(f"samples of shape {tuple(inputs.shape[1:])}, but flower.input_shape = {list(shape)}")
        if torch.as_tensor(targets).is_floating_point() == bool(classes):
            raise DataError(f"targets of type {targets.dtype}, but flower.num_classes = {classes}")
    clients = range(len(settings.clients))
    names = {name for own in held.values() for name in own.sample_attributes}
    for client, own in held.items():
        if missing := sorted(names - own.sample_attributes.keys()):
            raise DataError(f"{settings.clients[client]} has no array {missing[0]}, but other members have one")
    data = FederatedData.from_clients(
        [held[client].train if client in held else nothing for client in clients],
        [held[client].test if client in held else nothing for client in clients],
        num_classes=classes or None,
        sample_attributes={
            name: [held[client].sample_attributes[name] if client in held else [] for client in clients]
            for name in names
        },
        weigh=server.get("weigh"),
        report=server.get("report"),
        names=settings.clients,
    )
    return replace(data, samples=scored(experiment, data.samples))


def write_parts(config: Config, folder: str | Path) -> list[Path]:
    """Write what a config's partition gives every client, and the server, as the files a deployment reads.

    For trying a deployment on data that are not in different places yet: one NAME.npz for each of flower.clients, and
    server.npz.
    """
    experiment = load_experiment(config)
    data, _ = build_data(experiment, load_samples(experiment), experiment.seeds[0])
    names = experiment.flower.clients
    if len(names) != data.num_clients:
        hint = f"{len(names)} names for the {data.num_clients} clients of the partition"
        raise ConfigError(experiment.source, [("flower.clients", hint)])

    def arrays(part: str, shares: Holdings, holder: int) -> dict[str, Any]:
        held = shares.slice(holder)
        inputs = data.samples.batch(shares.indices[held])
        return {f"{part}_inputs": inputs.numpy(), f"{part}_targets": shares.targets[held].numpy()}

    def attributes(holder: int) -> dict[str, Any]:
        indices = data.train.indices[data.train.slice(holder)]
        return {name: values[indices].numpy() for name, values in data.samples.sample_attributes.items()}

    Path(folder).mkdir(parents=True, exist_ok=True)
    files = {
        name: {**arrays("train", data.train, k), **arrays("test", data.test, k), **attributes(k)}
        for k, name in enumerate(names)
    }
    server = [(part, shares) for part, shares in (("weigh", data.weigh), ("report", data.report)) if shares]
    files["server"] = {name: array for part, shares in server for name, array in arrays(part, shares, 0).items()}
    for name, content in files.items():
        numpy.savez(Path(folder) / f"{name}.npz", **content)
    return [Path(folder) / f"{name}.npz" for name in files]
