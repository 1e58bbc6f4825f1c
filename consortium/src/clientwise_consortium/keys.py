"""Who signs: OpenSSH keys, and the signers file in which a site lists whom it knows.

`/etc/clientwise/signers` is a file of OpenSSH's allowed signers (ssh-keygen(1)), owned by root. Every line has one
name, one or more namespaces and one key:

    north namespaces="clientwise-member" ssh-ed25519 AAAA...

The namespaces: `clientwise-member` (a site), `clientwise-coordinator`, `clientwise-approval` (an approver) and
`clientwise-release`. The other forms that OpenSSH knows (patterns, several names, certificates, dates) are refused:
then OpenSSH and this file cannot read a line in two ways.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from .canonical import ConsortiumError

MEMBER = "clientwise-member"
COORDINATOR = "clientwise-coordinator"
APPROVAL = "clientwise-approval"
NAMESPACES = {MEMBER, COORDINATOR, APPROVAL, "clientwise-release"}
SSH_KEYGEN = "/usr/bin/ssh-keygen"
LINE = re.compile(
    r'(?P<name>[A-Za-z0-9][\w.@-]*) namespaces="(?P<namespaces>[a-z,-]+)" '
    r"(?P<key>(?P<kind>[\w@.-]+) [A-Za-z0-9+/=]+)( [^\n]*)?"
)


class UntrustedError(ConsortiumError):
    """A signature, a key or a file that is not what it must be. Nothing is done with it."""


@dataclass(frozen=True)
class Signer:
    """One line of the signers file."""

    name: str
    namespaces: frozenset[str]
    kind: str  # of the key
    key: str  # as OpenSSH writes it


def read_signers(path: Path) -> list[Signer]:
    """The lines of a signers file; UntrustedError for any that has another form."""
    found: list[Signer] = []
    # OpenSSH ends a line at \\n alone: what Python calls a line may be a part of a comment.
    for number, line in enumerate(path.read_bytes().decode().split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise UntrustedError(
                f'{path}, line {number}: must be NAME namespaces="..." KEY, with one name'
            )
        namespaces = frozenset(match["namespaces"].split(","))
        if unknown := namespaces - NAMESPACES:
            raise UntrustedError(f"{path}, line {number}: unknown namespace {min(unknown)}")
        found.append(Signer(match["name"], namespaces, match["kind"], match["key"]))
    return found


def public_keys(path: Path, namespace: str) -> dict[str, Ed25519PublicKey]:
    """The keys of a namespace, by name: one for each name, and no key for two of them."""
    found: dict[str, Ed25519PublicKey] = {}
    seen: set[str] = set()
    for signer in read_signers(path):
        if namespace not in signer.namespaces:
            continue
        key = load_ssh_public_key(signer.key.encode())
        if not isinstance(key, Ed25519PublicKey):
            raise UntrustedError(f"{path}: the key of {signer.name} must be of type ssh-ed25519")
        if signer.name in found or signer.key in seen:
            raise UntrustedError(f"{path}: {signer.name} or its key is listed twice")
        found[signer.name] = key
        seen.add(signer.key)
    return found


def listed(path: Path, namespace: str, names: Iterable[str]) -> dict[str, Ed25519PublicKey]:
    """The keys of these names, in their order; UntrustedError where one is missing."""
    known = public_keys(path, namespace)
    found = {}
    for name in names:
        if name not in known:
            raise UntrustedError(f"{path}: no key of {name} as {namespace}")
        found[name] = known[name]
    return found


def private_key(path: Path) -> Ed25519PrivateKey:
    """A private key as `ssh-keygen -t ed25519 -N ''` writes it."""
    key = load_ssh_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise UntrustedError(f"{path}: must be a key of type ed25519")
    return key


def read_signed(path: Path, signers: Path, name: str, namespace: str) -> bytes:
    """The content of a file whose detached signature (PATH.sig) is by `name`.

    The bytes that OpenSSH checks are the bytes that are returned: the file is read once.
    """
    read_signers(signers)  # refuses lines that only OpenSSH would understand
    content = path.read_bytes()
    signature = path.with_name(f"{path.name}.sig")
    by_whom = ("-f", str(signers), "-I", name, "-n", namespace, "-s", str(signature))
    done = subprocess.run(
        [SSH_KEYGEN, "-Y", "verify", *by_whom],
        input=content,
        capture_output=True,
        check=False,
        env={},
    )
    if done.returncode:
        raise UntrustedError(f"{path}: not signed by {name} as {namespace}")
    return content
