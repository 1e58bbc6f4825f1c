"""The two files that root writes: `/etc/clientwise/node.toml` and `/etc/clientwise/server.toml`."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """What both files have. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    signers: Path = Path("/etc/clientwise/signers")
    experiment: Path = Path("/etc/clientwise/experiment.toml")
    coordinator: str = "coordinator"
    """The coordinator's name in the signers file."""


class NodeSettings(Settings):
    """`node.toml`, of a site."""

    site: str
    """The site's name in the signers file."""

    approver: str
    """The approver's name in the signers file."""

    data: str
    """The rows: train_inputs, train_targets, test_inputs and test_targets in a .npz file."""

    approval: Path = Path("/etc/clientwise/approval.toml")
    lock: Path = Path("/opt/clientwise/current/requirements.lock")
    state: Path = Path("/var/lib/clientwise-node")
    summary: Path = Path("/run/clientwise-node/summary.json")
    most_mu: float = 10.0
    """The house's limit of mu over all approvals together: one that would exceed it is refused."""

    allow_no_noise: bool = False
    """Whether the house accepts approvals without noise at all."""

    runtime: str = "127.0.0.1:9094"


class ServerSettings(Settings):
    """`server.toml`, of the coordinator."""

    run: Path = Path("/var/lib/clientwise-server/run")
    """The run folder; a run that is in it is resumed."""

    server_data: str = ""
    """The coordinator's own samples; "": none."""

    runtime: str = "127.0.0.1:8000"


def credential(name: str) -> Path:
    """A secret that systemd passes to this service alone (LoadCredential)."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        raise FileNotFoundError(
            f"CREDENTIALS_DIRECTORY is not set: start this by its systemd unit, which passes {name}"
        )
    return Path(folder) / name
