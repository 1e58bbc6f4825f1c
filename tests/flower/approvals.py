"""Approvals of nodes for tests: what `deploy/agree.sh` writes, without an app and data."""

from __future__ import annotations

from pathlib import Path

from clientwise.experiment.config import load_experiment
from clientwise.flower.approval import approve
from clientwise.flower.data import Config
from clientwise.flower.ledger import Ledger
from clientwise.flower.small_numbers import USUAL_CELL


def approve_once(ledger: str | Path, config: Config, cell: int = USUAL_CELL) -> None:
    """Approve a config, if nothing was approved before."""
    if not Path(ledger).exists():
        approve_again(ledger, config, cell)


def approve_again(ledger: str | Path, config: Config, cell: int = USUAL_CELL) -> None:
    """Approve a config, for one more run."""
    experiment = load_experiment(config, replaced={"initial_model": None})
    approve(Ledger(Path(ledger)), config, experiment, cell, bundle="0" * 64, words="a test")
