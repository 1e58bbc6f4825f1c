"""The signers file and signed files: OpenSSH and this package read the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from clientwise_consortium.keys import (
    UntrustedError,
    listed,
    private_key,
    public_keys,
    read_signed,
)
from conftest import Keys

DOCTOR = ("doctor", "clientwise-approval")


def test_a_signed_file_is_read(keys: Keys, tmp_path: Path) -> None:
    path = tmp_path / "approval.toml"
    path.write_text("a = 1\n")
    keys.sign(path, "doctor")
    assert read_signed(path, keys.signers, *DOCTOR) == b"a = 1\n"


def test_other_content_another_signer_and_another_purpose_are_refused(
    keys: Keys, tmp_path: Path
) -> None:
    path = tmp_path / "approval.toml"
    path.write_text("a = 1\n")
    keys.sign(path, "north")  # is no approver
    with pytest.raises(UntrustedError, match="not signed by doctor"):
        read_signed(path, keys.signers, *DOCTOR)
    keys.sign(path, "doctor", "clientwise-release")
    with pytest.raises(UntrustedError, match="not signed"):
        read_signed(path, keys.signers, *DOCTOR)
    keys.sign(path, "doctor")
    path.write_text("a = 2\n")
    with pytest.raises(UntrustedError, match="not signed"):
        read_signed(path, keys.signers, *DOCTOR)
    path.with_name("approval.toml.sig").unlink()
    with pytest.raises(UntrustedError, match="not signed"):
        read_signed(path, keys.signers, *DOCTOR)


@pytest.mark.parametrize(
    "line",
    [
        '* namespaces="clientwise-approval" {key}',  # a pattern
        'doctor,evil namespaces="clientwise-approval" {key}',
        "doctor {key}",  # any namespace
        'doctor cert-authority,namespaces="clientwise-approval" {key}',
        'doctor namespaces="clientwise-approval",valid-before="20200101" {key}',
        'doctor namespaces="clientwise-*" {key}',
        'doctor namespaces="file" {key}',
    ],
)
def test_lines_of_other_forms_are_refused(keys: Keys, tmp_path: Path, line: str) -> None:
    public = (keys.folder / "doctor.pub").read_text().strip()
    keys.signers.write_text(line.format(key=public) + "\n")
    path = tmp_path / "approval.toml"
    path.write_text("a = 1\n")
    keys.sign(path, "doctor")
    with pytest.raises(UntrustedError, match=r"line 1|not signed"):
        read_signed(path, keys.signers, *DOCTOR)


def test_keys_by_namespace(keys: Keys) -> None:
    assert set(public_keys(keys.signers, "clientwise-member")) == {"east", "north", "south"}
    found = listed(keys.signers, "clientwise-member", ["south", "east"])
    assert list(found) == ["south", "east"]
    with pytest.raises(UntrustedError, match="no key of doctor as clientwise-member"):
        listed(keys.signers, "clientwise-member", ["doctor"])


def test_a_name_or_a_key_for_two_is_refused(keys: Keys) -> None:
    text = keys.signers.read_text()
    north = next(line for line in text.splitlines() if line.startswith("north"))
    keys.signers.write_text(text + north.replace("north", "west", 1) + "\n")
    with pytest.raises(UntrustedError, match="listed twice"):
        public_keys(keys.signers, "clientwise-member")


def test_a_key_of_another_type_is_refused(keys: Keys, tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "rsa"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)
    with pytest.raises(UntrustedError, match="ed25519"):
        private_key(path)
