"""Is a record what was signed, and do its weights follow from the criteria that members signed?

Faults of the record end the verification before the library is imported. An experiment that names code is refused: no
code of a record is ever run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .approval import ApprovalError, Experiment
from .canonical import Row
from .claims import read_claim
from .keys import UntrustedError
from .record import LINES, by_line, faults, read

TOLERANCE = 1e-9  # of a weight: sums in another order


def verify(
    folder: Path,
    experiment: Path,
    trusted: Ed25519PublicKey,
    members: Mapping[str, Ed25519PublicKey],
    heads: Mapping[str, Collection[str]],
) -> list[str]:
    """All faults of a record; the weights are recomputed only where there is none.

    Args:
        folder: with the record.
        experiment: its file.
        trusted: the coordinator's key.
        members: the identities of the members, from the signers file.
        heads: those that members kept.
    """
    try:
        found = list(faults(folder, trusted, heads))
        found = found or list(_claim_faults(folder, experiment, members))
        return found or list(_weight_faults(folder, experiment))
    except (
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:  # signed, and yet no record
        return [f"this record has another form: {type(error).__name__} {error}"]


def _weight_faults(folder: Path, experiment: Path) -> Iterator[str]:
    from clientwise.experiment.load import load_experiment

    table = Experiment.read(experiment.read_bytes()).for_library()
    methods = {method.name: method for method in load_experiment(table).build_methods()}
    for body, rows in rounds(folder):
        yield from recompute(body, rows, methods)


def rounds(folder: Path) -> Iterator[tuple[Row, Mapping[str, Row]]]:
    """The rounds of a record, with the rows of those members whose updates were used."""
    shown = by_line(folder)
    for line in read(folder / LINES):
        body = line["body"]
        if "round" in body:
            rows = shown[body["previous"]]["rows"]
            yield body, {name: row for name, row in rows.items() if "criteria" in row}


def recompute(body: Row, rows: Mapping[str, Row], methods: Mapping[str, Any]) -> Iterator[str]:
    """Whether the weights of a round follow from its criteria. Evidence and bounds are taken as recorded."""
    import torch
    from clientwise.core.weights.weighting import divide, to_weights

    if not rows:
        return
    where = f"{body['method']}, seed {body['seed']}, round {body['round']}"
    method = methods.get(body["method"])
    if method is None:
        yield f"{where}: no such method in the experiment"
        return
    if tuple(body["criteria"]) != tuple(method.names):
        yield f"{where}: weighed by {body['criteria']}, the experiment has {list(method.names)}"
        return
    own = {part.called for part in method.client_criteria}
    for name, row in rows.items():
        if row["signed"] is not None and not own <= row["signed"]["claim"]["criteria"].keys():
            yield f"{where}: {name} did not sign all of its criteria"
    raw = torch.tensor(
        [[row["criteria"][name] for name in body["criteria"]] for row in rows.values()],
        dtype=torch.float64,
    )
    score = method.score.with_order(body["priority"] and tuple(body["priority"]))
    computed = to_weights(score(method.names, divide(raw, method.normaliser(raw)))).tolist()
    for (name, row), prior in zip(rows.items(), computed, strict=True):
        if abs(row["prior"] - prior) > TOLERANCE:
            yield f"{where}: {name} has the prior weight {row['prior']:.6g}, its criteria give {prior:.6g}"
        is_final = method.evidence is None and method.bounds is None
        if is_final and abs(row["weight"] - row["prior"]) > TOLERANCE:
            yield f"{where}: {name} has the weight {row['weight']:.6g}, its prior is {row['prior']:.6g}"


def _claim_faults(
    folder: Path, experiment: Path, members: Mapping[str, Ed25519PublicKey]
) -> Iterator[str]:
    """What does not hold of the first line and of the members' signatures."""
    try:
        known = Experiment.read(experiment.read_bytes())
    except (ApprovalError, ValueError) as error:
        yield f"{experiment}: {error}"
        return
    first: Row = next(iter(read(folder / LINES)), {}).get("body", {})
    keys = {name: key.public_bytes_raw().hex() for name, key in members.items()}
    if first.get("experiment") != known.digest:
        yield f"{experiment}: not the experiment of this record"
        return
    if first.get("members") != {name: keys.get(name) for name in known.members}:
        yield "line 1: its members' keys are not those of the signers file"
        return
    used: set[tuple[Any, ...]] = set()
    for body, rows in rounds(folder):
        where = f"round {body['round']} of {body['method']}"
        if body["seed"] not in known.seeds or body["round"] > known.rounds:
            yield f"{where}, seed {body['seed']}: the experiment has no such round"
        for name, row in rows.items():
            if known.masked:  # one row, of all members together
                continue
            if fault := _claim_fault(name, body, row, known.digest, members):
                yield f"{where}: {name}: {fault}"
                continue
            claim = row["signed"]["claim"]
            once = (body["method"], name, claim["seed"], claim["round"])
            if once in used:  # an update is used once, perhaps in a later round
                yield f"{where}: {name}: its signature was used before"
            used.add(once)


def _claim_fault(
    name: str, body: Row, row: Row, experiment: str, members: Mapping[str, Ed25519PublicKey]
) -> str | None:
    try:
        claim = read_claim(row["signed"], name, members[name], experiment)
    except UntrustedError as error:
        return str(error)
    if claim["seed"] != body["seed"] or claim["round"] > body["round"]:
        return "its signature is of another round"
    if not claim["criteria"].items() <= row["criteria"].items():
        return "its criteria are not those that it signed"
    return None
