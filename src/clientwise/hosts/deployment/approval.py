"""An operator's approval of an app: an event in the node's ledger, with a random id.

The last approval counts and ends those before it. It is worth one run: the requests that the approved
experiment can make. Another approval adds one run to what the node has released, and the operator
says why. Nothing takes away from what was released: it is the sum of all requests in the ledger, over
all approvals, apps and versions of the data, since most rows stay when others change.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.privacy import gaussian_epsilon
from ...experiment.config.schema import Experiment
from ..flower.data import Config
from .allowance import DELTA, Allowance
from .ledger import Entry, Ledger

APPROVED = "approved"
WITHDRAWN = "withdrawn"
ROWS = {"train": "a training row", "evaluate": "a test row"}


def present(entries: Sequence[Entry]) -> Entry | None:
    """The approval that counts; None if there is none, or if it was withdrawn."""
    for entry in reversed(entries):
        if entry["event"] == WITHDRAWN:
            return None
        if entry["event"] == APPROVED:
            return entry
    return None


def approve(
    ledger: Ledger, config: Config, experiment: Experiment, cell: int, bundle: str, words: str
) -> Entry:
    """Record an approval.

    Args:
        ledger: the node's.
        config: the app's file `experiment.toml`.
        experiment: what it says.
        cell: the node's smallest cell.
        bundle: SHA-256 of the app's bundle.
        words: why the operator approves.
    """
    allowance = Allowance(experiment)
    ledger.make_key()
    with ledger.locked() as entries:
        entry = ledger.add(
            entries,
            APPROVED,
            approval=secrets.token_hex(6),
            bundle=bundle,
            experiment=config_digest(config),
            smallest_cell=cell,
            trainings=allowance.trainings,
            evaluations=allowance.models,
            words=words,
            missing=ledger.missing(entries),
        )
        ledger.recount(entries)
    return entry


def withdraw(ledger: Ledger, words: str) -> None:
    """From now on the node answers nothing, until its operator approves an app again."""
    with ledger.locked() as entries:
        approval = present(entries)
        named = approval["approval"] if approval else "none"
        ledger.add(entries, WITHDRAWN, approval=named, words=words)


def config_digest(config: Config) -> str:
    """Names an experiment: by the bytes of its file, wherever Flower unpacks it."""
    if isinstance(config, Mapping):
        content = json.dumps(config, sort_keys=True, default=str).encode()
    else:
        content = Path(config).read_bytes()
    # The whole hash: of 48 bits of it, whoever writes two experiments can make both alike.
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Released:
    """What a node has released about its training rows or its test rows, over all approvals."""

    models: int
    bare: int  # of them without noise, or of a version that did not write it down
    mu: float  # of Gaussian differential privacy, of the others together


def released(entries: Sequence[Entry], kind: str) -> Released:
    """The sum of all requests of a kind, "train" or "evaluate"."""
    models = 0
    bare = 0
    squares = 0.0
    for entry in entries:
        if entry["event"] != "asked" or entry.get("kind") != kind:
            continue
        count = len(entry["models"])
        models += count
        square = entry.get("mu_squared")
        if square is None:
            bare += count
        else:
            squares += square
    return Released(models, bare, math.sqrt(squares))


def lifetime(entries: Sequence[Entry], experiment: Experiment, cell: int) -> Iterator[str]:
    """What was released about a row so far, and the most that another run adds to it."""
    allowance = Allowance(experiment)
    granted = {"train": allowance.row_noise(), "evaluate": allowance.result_noise(cell)}
    for kind, row in ROWS.items():
        before = released(entries, kind)
        more = granted[kind]
        done = {"train": "trained", "evaluate": "evaluated"}[kind]
        so_far = f"{row}: {before.models:,} models {done} before"
        if before.bare:
            so_far += f", {before.bare:,} of them without noise, or by version 0.2.0"
        if more is None or before.bare:
            yield f"{so_far}; no noise bounds the sum"
            continue
        total = math.hypot(before.mu, more)
        if not total:
            continue
        spent = f" (μ = {before.mu:.2g})" if before.models else ""
        yield (
            f"{so_far}{spent}; with this approval at most μ = {total:.2g}, "
            f"ε = {gaussian_epsilon(total, DELTA):.2g} at δ = {DELTA:g}"
        )
