"""The data of a deployment: every party has its own file and reads no other."""

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
from ..experiment.secure_issues import has_secrets, identity_issues
from ..experiment.validation import deployment_issues

Config = str | Path | Mapping[str, Any]
PLACES = ("files", "loader")  # keys of the config, and of Flower's run config


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


def server_side(experiment: Experiment, path: str) -> FederatedData:
    """The data of a deployment's server: its own samples, if it has any, and none of clients.

    The file holds the arrays weigh_inputs and weigh_targets, report_inputs and report_targets;
    either pair is optional.
    """
    parts = _server_parts(path)
    issues = [*deployment_issues(experiment), *identity_issues(experiment)]
    if "report" not in parts and has_secrets(experiment):
        hint = "secure aggregation evaluates on the server's samples alone, which have no report_inputs: "
        hint += "start the run with such samples (start.sh SERVER_DATA)"
        issues.append(("methods[0].secure_aggregation", hint))
    elif "report" not in parts and experiment.evaluation.clients_every != 1:
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
    load = loader_in(settings.loader) if settings.loader else load_npz
    held = {}
    for client, name in enumerate(settings.clients):
        held[client] = load(str(_file_of(folder, name)))
    server = folder / "server.npz"
    parts = _server_parts(str(server)) if server.exists() else {}
    return data_held_by(experiment, held, parts)


def found_by(experiment: Experiment, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the files and the loader of Flower's run config.

    A bundle does not contain them.
    """
    given = {key: str(run_config[key]) for key in PLACES if run_config.get(key)}
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


def _server_parts(path: str) -> dict[str, tuple[Any, Any]]:
    arrays = read_npz(Path(path)) if path else {}
    parts = [part for part in ("weigh", "report") if f"{part}_inputs" in arrays]
    return inputs_and_targets(arrays, parts, path)


def data_held_by(
    experiment: Experiment, held: Mapping[int, OwnData], server: Mapping[str, tuple[Any, Any]]
) -> FederatedData:
    """Federated data in which only the clients of `held` have samples."""
    settings = experiment.flower
    shape = tuple(settings.input_shape)
    classes = settings.num_classes
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
    return replace(data, samples=scored(experiment, data.samples))


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

    def arrays(part: str, shares: Holdings, holder: int) -> dict[str, Any]:
        held = shares.slice(holder)
        inputs = data.samples.batch(shares.indices[held])
        return {f"{part}_inputs": inputs.numpy(), f"{part}_targets": shares.targets[held].numpy()}

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
        (part, shares)
        for part, shares in (("weigh", data.weigh), ("report", data.report))
        if shares
    ]
    files["server"] = {
        name: array for part, shares in server for name, array in arrays(part, shares, 0).items()
    }
    for name, content in files.items():
        numpy.savez(Path(folder) / f"{name}.npz", **content)
    return [Path(folder) / f"{name}.npz" for name in files]
