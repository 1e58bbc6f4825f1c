"""`cw.load`: a config or a trained model, by the kind of file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .experiment.load import load_experiment
from .models.modules import OwnNetwork
from .prediction import load_predictor
from .record.model_file import ENDING


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
    *,
    module: OwnNetwork | None = None,
) -> Any:
    """Read a trained model (`Predictor`) from a .safetensors file, or a config (`Experiment`).

    A model needs only `source` and, where the network is your own, `module`. A config takes the
    other arguments; see `load_experiment`.

    Args:
        source: a file that `clientwise export` wrote, a TOML file, or a dictionary of its shape.
        overrides: texts `key=value` as in `--set`.
        replaced: values for keys of the top level. They win over `overrides`.
        preset: one of the presets of the file.
        module: your own network: a module, or a function that makes one.
    """
    if isinstance(source, str | Path) and str(source).endswith(ENDING):
        return load_predictor(source, module)
    return load_experiment(source, overrides, replaced, preset)
