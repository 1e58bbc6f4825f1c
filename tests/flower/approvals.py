"""Approvals of nodes for tests: what `deploy/agree.sh` writes, without an app and data."""

from __future__ import annotations

from pathlib import Path

from clientwise.experiment.load import load_experiment
from clientwise.hosts.deployment.approval import approve
from clientwise.hosts.deployment.ledger import Ledger
from clientwise.hosts.deployment.small_numbers import USUAL_CELL
from clientwise.hosts.flower.data import Config


def approve_once(ledger: str | Path, config: Config, cell: int = USUAL_CELL) -> None:
    """Approve a config, if nothing was approved before."""
    if not Path(ledger).exists():
        approve_again(ledger, config, cell)


def approve_again(ledger: str | Path, config: Config, cell: int = USUAL_CELL) -> None:
    """Approve a config, for one more run."""
    experiment = load_experiment(config, replaced={"initial_model": None})
    approve(Ledger(Path(ledger)), config, experiment, cell, bundle="0" * 64, words="a test")
