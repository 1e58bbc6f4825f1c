"""The signed record: `clientwise key`, `verify`, `receipts`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..report.output.markup import escape
from .console import (
    err,
    fail,
    out,
    print_lines,
    writing_to,
)
from .options import NamedRunArgument

if TYPE_CHECKING:
    from ..experiment.running.recompute import Recomputed
    from ..record.signed.stamps import Stamped

SHOWN_FAULTS = 20


def key(
    file: Annotated[
        Path, typer.Argument(help="File of the private key; must not exist.", show_default=False)
    ],
) -> None:
    """Make a key to sign records with: FILE, to be kept secret, and FILE.pub, to be given away.

    Example: clientwise key federation.key
    """
    from ..record.signed.keys import make_private_key, public_bytes

    made = make_private_key(file)
    print_lines(
        [
            f"Private key  {file} (keep it on the server; only you can read it)",
            f"Public key   {file}.pub (give it to all members)",
            f"Fingerprint  {public_bytes(made).hex()[:16]}",
        ]
    )


def verify(
    folder: NamedRunArgument,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--key", help="The public key that must have signed (PEM).", show_default=False
        ),
    ] = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(
            "--receipts",
            help="Receipts of members: files, or folders of them (*.jsonl).",
            show_default=False,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RECEIPTS]...", help="More receipts, after --receipts.", show_default=False
        ),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            "--tsa-certificate",
            help="Root certificate of the authority that stamped the record (PEM).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Verify a signed record, and recompute every weight from the recorded criteria.

    Finds rows that were inserted, deleted, moved or changed after they were signed, and says where.
    With the receipts of members it also finds an end that was cut off, and a record that was written
    and signed anew. To recompute weights, the plugins of the run's config are imported.

    Example: clientwise verify runs/mine --key federation.key.pub --receipts receipts more-receipts
    """
    from ..record.signed.keys import public_bytes, public_keys
    from ..record.signed.verify import verify as verify_record

    if more and not receipts:
        fail(f"{more[0]}: one run folder is verified at a time. Give receipts with --receipts")
    trusted = [public_bytes(one) for one in public_keys(public_key)] if public_key else []
    with err.status("Verifying the chain"):
        found = verify_record(folder, trusted, _receipt_files([*(receipts or []), *(more or [])]))
    lines = [
        f"Chain        {found.entries:,} entries, {found.rounds:,} rounds; last entry {found.last}",
        f"Signed by    {_signers(found.keys, bool(trusted))}",
        f"Receipts     {_compared(found.receipts, found.unreceipted)}",
    ]
    stamps, about_stamps = _stamps(folder, certificates, found.entries)
    if about_stamps:
        lines.append(f"Stamps       {about_stamps}")
    lines += [f"Run again    {text}" for text in found.repeated]
    lines += [f"Changed      {text}" for text in found.changed]
    weights = _recomputed(folder, found.members)
    print_lines([*lines, *_about_weights(weights)])
    _conclude(folder, [*found.faults, *stamps.faults, *weights.faults])


def _recomputed(folder: Path, members: Mapping[tuple[str, int, int], int]) -> Recomputed:
    """The weights, recomputed from the criteria; one fault where the database was changed."""
    from ..errors import RunError
    from ..experiment.running.recompute import Recomputed, recompute
    from ..record.reading.folder import RunFolder

    with err.status("Recomputing the weights"):
        try:
            return recompute(RunFolder(folder), members)
        except RunError as error:
            return Recomputed(faults=[str(error)])


def _about_weights(weights: Recomputed) -> Iterator[str]:
    yield f"Weights      of {weights.rounds:,} rounds recomputed from the criteria"
    for text in sorted(weights.taken):
        yield f"             {text}"
    for method, reason in weights.skipped.items():
        yield f"             {method}: not recomputed ({reason})"


def _conclude(folder: Path, faults: Sequence[str]) -> None:
    """Print the faults, and end with an error where there are any."""
    for fault in faults[:SHOWN_FAULTS]:
        out.print(f"[red]FAULT[/]        {escape(fault)}", soft_wrap=True)
    if len(faults) > SHOWN_FAULTS:
        out.print(f"             and {len(faults) - SHOWN_FAULTS:,} more")
    if faults:
        fail(f"{folder}: the record is not what was signed ({len(faults):,} faults)")
    out.print("[green]OK[/]           the record is what was signed")


def receipts(
    folder: NamedRunArgument,
    out_folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for the receipts, one file for every member."),
    ] = Path("receipts"),
) -> None:
    """Write every member's receipts: what was recorded about it, with the proof.

    A member keeps its file. `clientwise verify --receipts` compares a record with it.

    Example: clientwise receipts runs/mine --out receipts
    """
    from ..record.files import plain_names
    from ..record.signed.receipts import receipts as receipts_of
    from ..writing import make_folder, write_atomically

    found = receipts_of(folder)
    if not found:
        fail(f"{folder}: its record is not signed (clientwise run --sign KEY)")
    with writing_to(out_folder):
        make_folder(out_folder)
        for name, own in zip(plain_names(found), found.values(), strict=True):
            lines = [json.dumps(receipt) for receipt in own]
            write_atomically(out_folder / f"{name}.jsonl", ("\n".join(lines) + "\n").encode())
    print_lines([f"Receipts     {out_folder}: {len(found):,} files, one for every member"])


def stamp(
    folder: NamedRunArgument,
    tsa: Annotated[
        str,
        typer.Option("--tsa", metavar="URL", help="Time stamping authority.", show_default=False),
    ],
) -> None:
    """Have a signed record stamped by a time stamping authority (RFC 3161), now.

    The authority gets a hash and states its time. The stamp shows that all entries so far existed
    then. `clientwise verify --tsa-certificate FILE` checks it, offline.

    Example: clientwise stamp runs/mine --tsa https://tsa.example.org
    """
    from ..record.signed.stamps import stamp_head

    with err.status("Waiting for the stamp"), writing_to(folder):
        position = stamp_head(folder, tsa)
    print_lines([f"Stamped      entries 1 to {position:,} of {folder}"])


def _stamps(folder: Path, certificates: Path | None, entries: int) -> tuple[Stamped, str]:
    """What the time stamps show, also in words; "" where there are none and none are asked for."""
    from ..record.signed.stamps import Stamped, count_stamps, verify_stamps

    if certificates:
        stamps = verify_stamps(folder, certificates)
        return stamps, _stamped(stamps, entries)
    given = count_stamps(folder)
    return Stamped(), f"{given:,}, not checked: give --tsa-certificate" if given else ""


def _stamped(stamps: Stamped, entries: int) -> str:
    if stamps.time is None:
        return "none: all times are those of the server's clock"
    known = f"entries 1 to {stamps.until:,} existed at {stamps.time:%Y-%m-%d %H:%M:%S} UTC"
    first = stamps.until + 1
    if first > entries:
        return known
    return f"{known}; entries {first:,} to {entries:,} have no stamp"


def _compared(receipts: int, unreceipted: int) -> str:
    if not receipts:
        return "none given: a cut end, and a record written anew, would not be found"
    if not unreceipted:
        return f"{receipts:,}, at least one of every round"
    return (
        f"{receipts:,}; none of {unreceipted:,} rounds, which the owner of the key can have changed"
    )


def _signers(keys: list[str], compared: bool) -> str:
    named = ", ".join(key[:16] for key in keys) or "no valid key"
    if compared:
        return f"{named}, the key given"
    return f"{named}. Compare it with the federation's key, or give --key"


def _receipt_files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            fail(f"{path}: no receipts (*.jsonl) in it")
        files += found
    return files
