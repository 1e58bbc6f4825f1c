"""The parameters of a module that was given in Python: all lanes of a run begin with the same ones."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...errors import RunError
from ...record.files import initial_path
from ..config.schema import Experiment
from .origin import recorded_parameters


def with_initial_parameters(folder: Path, experiment: Experiment) -> tuple[Experiment, list[str]]:
    """The experiment with the parameters that its run began with, and a remark where others were given.

    A script that is run again makes its module anew, with other random parameters. Lanes that begin now
    would not be comparable with those that have begun. Folders of earlier versions keep no parameters.
    """
    own = experiment.own_model
    if own is None or experiment.initial_model is not None:
        return experiment, []
    given = own.parameters()
    path = initial_path(folder)
    if path.exists():
        kept = _read(path)
        if given is None or given.numel() == kept.numel():  # other layers are refused later
            is_same = given is not None and given.equal(kept)
            said = "goes on with the initial parameters that it began with, not those of the given network"
            remarks = [] if is_same else [f"{folder}: {said}"]
            return experiment.with_model(own.starting_from(kept)), remarks
    if given is None or recorded_parameters(folder) == "":
        return experiment, []
    return experiment.with_model(own.starting_from(given)), []


def _read(path: Path) -> Tensor:
    try:
        return load_file(path)["model"].float()
    except (OSError, SafetensorError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path}: damaged ({reason}); restore it, or choose another output folder"
        ) from None
