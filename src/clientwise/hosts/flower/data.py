"""The data of a deployment: every party has its own file and reads no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch

from ...core.objective.problem import Regression
from ...data.datasets import DataError
from ...data.federated import FederatedData, Holdings
from ...data.folder import read_npz
from ...errors import ConfigError
from ...experiment.build.data import build_data, load_samples, scored
from ...experiment.checks.combinations import deployment_issues
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ...writing import replacing
from ..protocols import OwnData

Config = str | Path | Mapping[str, Any]


def load_npz(path: str) -> OwnData:
    """Arrays train_inputs, train_targets, test_inputs, test_targets of a NumPy file.

    Other arrays are sample attributes.
    """
    arrays = read_npz(Path(path))
    train, test = (_pair(arrays, part, path) for part in ("train", "test"))
    return OwnData(train, test, arrays)


def _pair(arrays: dict[str, Any], part: str, path: str) -> tuple[Any, Any]:
    """Take the inputs and targets of a part out of the arrays of a file."""
    try:
        return arrays.pop(f"{part}_inputs"), arrays.pop(f"{part}_targets")
    except KeyError as error:
        raise DataError(f"{path}: has no array {error.args[0]}") from None


def server_side(experiment: Experiment, path: str) -> FederatedData:
    """The data of a deployment's server: its own samples, if it has any, and none of clients.

    The file holds the arrays weigh_inputs and weigh_targets, report_inputs and report_targets;
    either pair is optional.
    """
    issues = deployment_issues(experiment)
    if issues:  # before the file is read: it may not exist yet
        raise ConfigError(experiment.source, issues)
    parts = _server_parts(path)
    if "report" not in parts and experiment.evaluation.clients_every != 1:
        hint = "must be 1: nodes evaluate the model only in the rounds that it names, and without "
        hint += "report_inputs in the server's samples every round needs an evaluation"
        raise ConfigError(experiment.source, [("evaluation.clients_every", hint)])
    return data_held_by(experiment, {}, parts)


def _server_parts(path: str) -> dict[str, tuple[Any, Any]]:
    arrays = read_npz(Path(path)) if path else {}
    parts = [part for part in ("weigh", "report") if f"{part}_inputs" in arrays]
    return {part: _pair(arrays, part, path) for part in parts}


def data_held_by(
    experiment: Experiment, held: Mapping[int, OwnData], server: Mapping[str, tuple[Any, Any]]
) -> FederatedData:
    """Federated data in which only the clients of `held` have samples."""
    settings = experiment.flower
    shape = tuple(settings.input_shape)
    classes = settings.num_classes
    target_type = torch.int64 if classes else torch.float32
    nothing = (torch.zeros(0, *shape), torch.zeros(0, dtype=target_type))
    blocks = [block for own in held.values() for block in (own.train, own.test)]
    for inputs, targets in [*blocks, *server.values()]:
        if tuple(inputs.shape[1:]) != shape:
            raise DataError(
                f"samples of shape {tuple(inputs.shape[1:])}, but flower.input_shape = {list(shape)}"
            )
        if torch.as_tensor(targets).is_floating_point() == bool(classes):
            raise DataError(f"targets of type {targets.dtype}, but flower.num_classes = {classes}")
    parts = [held.get(client, OwnData(nothing, nothing)) for client in range(len(settings.clients))]
    names = {name for own in parts for name in own.sample_attributes}
    data = FederatedData.from_clients(
        [own.train for own in parts],
        [own.test for own in parts],
        num_classes=classes or None,
        problem=None if classes else Regression.kind,
        sample_attributes={
            name: [own.sample_attributes.get(name, []) for own in parts] for name in names
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

    def arrays(part: str, holdings: Holdings, holder: int) -> dict[str, Any]:
        held = holdings.slice(holder)
        samples, indices = data.samples, holdings.indices[held]
        inputs = samples.inputs[indices] if samples.scale == 1 else samples.batch(indices)
        return {f"{part}_inputs": inputs.numpy(), f"{part}_targets": holdings.targets[held].numpy()}

    files = {}
    for client, name in enumerate(names):
        indices = data.train.indices[data.train.slice(client)]
        facts = data.samples.sample_attributes.items()
        files[name] = {
            **arrays("train", data.train, client),
            **arrays("test", data.test, client),
            **{fact: values[indices].numpy() for fact, values in facts},
        }
    files["server"] = {}
    for part, holdings in (("weigh", data.weigh), ("report", data.report)):
        if holdings:
            files["server"] |= arrays(part, holdings, 0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with replacing(Path(folder) / f"{name}.npz") as temporary, temporary.open("wb") as file:
            numpy.savez(file, **content)
    return [Path(folder) / f"{name}.npz" for name in files]
