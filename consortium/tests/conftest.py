"""What the tests share: keys and a signers file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clientwise.experiment.running import lanes

from clientwise_consortium.keys import private_key

NAMES = ["east", "north", "south"]


class Keys:
    """OpenSSH keys in a folder, and a signers file that lists them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signers = folder / "signers"
        self.signers.write_text("")

    def add(self, name: str, namespace: str) -> Path:
        path = self.folder / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(command, check=True)
        public = path.with_suffix(".pub").read_text()
        with self.signers.open("a") as file:
            file.write(f'{name} namespaces="{namespace}" {public}')
        return path

    def sign(self, path: Path, name: str, namespace: str = "clientwise-approval") -> None:
        path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
        key = str(self.folder / name)
        command = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, str(path)]
        subprocess.run(command, check=True, capture_output=True)

    def private(self, name: str):  # type: ignore[no-untyped-def]
        return private_key(self.folder / name)


@pytest.fixture(autouse=True)
def _record_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library records rounds of less than half a second during the next one. Over Flower, none is as short."""
    monkeypatch.setattr(lanes, "SHORT", 0.0)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    folder = tmp_path / "keys"
    folder.mkdir()
    found = Keys(folder)
    for name in NAMES:
        found.add(name, "clientwise-member")
    found.add("coordinator", "clientwise-coordinator")
    found.add("doctor", "clientwise-approval")
    return found


Mutation = Callable[[bytes], bytes]
