"""The command `clientwise-consortium`. Each part is imported only where it runs: `agree` imports no library."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from .approval import Experiment, in_words, propose, read_summary
from .canonical import ConsortiumError
from .keys import COORDINATOR, MEMBER, UntrustedError, public_keys

SIGNERS = Path("/etc/clientwise/signers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("clientwise-consortium", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser(
        "new", help="write the files of a coordinator or a site to start from"
    )
    one.add_argument("role", choices=["coordinator", "site"])
    one.add_argument("folder", type=Path)
    one.set_defaults(act=_new)

    one = commands.add_parser(
        "agree", help="print the most that an experiment releases; write the approval"
    )
    one.add_argument("experiment", type=Path)
    one.add_argument("--site", required=True, help="this site's name in the experiment")
    one.add_argument(
        "--lock", type=Path, required=True, help="requirements.lock of the code that runs"
    )
    one.add_argument("--reason", default="", help="why you approve")
    one.add_argument("--without-noise", help="why you accept an experiment without noise")
    one.add_argument("--evaluations", type=int, default=0, help="most models to test on your rows")
    one.add_argument(
        "--cell", type=int, default=5, help="smallest group of patients; 1: exact numbers"
    )
    one.add_argument("--summary", type=Path, help="the node's summary.json")
    one.add_argument("--out", type=Path, default=Path("approval.toml"))
    one.set_defaults(act=_agree)

    one = commands.add_parser("begin", help="make this site's ledger: once in its life")
    one.add_argument("ledger", type=Path)
    one.set_defaults(act=_begin)

    for name, text in (("node", "serve a site"), ("server", "serve the coordinator")):
        one = commands.add_parser(name, help=text)
        one.add_argument("settings", type=Path)
        one.set_defaults(act=_serve)

    one = commands.add_parser("statement", help="write what one site gets of a record")
    one.add_argument("record", type=Path)
    one.add_argument("site")
    one.set_defaults(act=_statement)

    one = commands.add_parser("verify", help="check a record, or a site's statement")
    one.add_argument("record", type=Path, help="the folder of a record, or a statement")
    one.add_argument("--experiment", type=Path, help="of the record; not needed for a statement")
    one.add_argument("--site", help="whose statement it is")
    text = "a site's summary.json, named after the site"
    one.add_argument(
        "--heads", type=Path, action="append", default=[], metavar="SITE.json", help=text
    )
    one.add_argument("--signers", type=Path, default=SIGNERS)
    one.add_argument("--coordinator", default="coordinator")
    one.set_defaults(act=_verify)

    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every look into the mailbox
    try:
        return int(options.act(options))
    except (ConsortiumError, OSError, ValueError) as error:
        show(f"error: {error}", sys.stderr)
        return 1


def show(line: str, file: TextIO | None = None) -> None:
    """Print what may quote others: nothing of it reaches the terminal as a command."""
    print("".join(one if one.isprintable() else "?" for one in line), file=file)


def _new(options: argparse.Namespace) -> int:
    from .new import write

    for path in write(options.role, options.folder):
        print(path)
    return 0


def _agree(options: argparse.Namespace) -> int:
    experiment = Experiment.read(options.experiment.read_bytes())
    approval = propose(
        experiment,
        site=options.site,
        lock=options.lock.read_bytes(),
        reason=options.reason,
        without_noise=options.without_noise,
        evaluations=options.evaluations,
        cell=options.cell,
    )
    for line in in_words(approval, experiment, read_summary(options.summary)):
        show(line)
    options.out.write_text(approval.text(), encoding="utf-8")
    print(
        f"\nIf you agree, sign it with your own key:\n  ssh-keygen -Y sign -n clientwise-approval -f KEY {options.out}"
    )
    return 0


def _begin(options: argparse.Namespace) -> int:
    from .ledger import Ledger

    if options.ledger.exists():
        raise UntrustedError(f"{options.ledger}: exists already; a ledger is never replaced")
    Ledger(options.ledger, begin=True)
    return 0


def _serve(options: argparse.Namespace) -> int:
    from . import settings as files

    table = tomllib.loads(options.settings.read_text(encoding="utf-8"))
    if options.command == "node":
        from . import node

        node.run(files.NodeSettings(**table))
    else:
        from . import server

        server.run(files.ServerSettings(**table))
    return 0


def _statement(options: argparse.Namespace) -> int:
    from .canonical import encode
    from .record import statement

    for line in statement(options.record, options.site):
        print(encode(line).decode())
    return 0


def _verify(options: argparse.Namespace) -> int:
    trusted = public_keys(options.signers, COORDINATOR)[options.coordinator]
    summaries = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in options.heads}
    heads = {name: summary["heads"] for name, summary in summaries.items()}
    if options.record.is_file():
        from .record import statement_faults

        if set(summaries) != {options.site}:
            raise ValueError(
                "a statement needs --site NAME and --heads NAME.json: that site's summary.json"
            )
        own = summaries[options.site]
        try:
            found = list(statement_faults(options.record, options.site, trusted, own))
        except (KeyError, TypeError, AttributeError) as error:  # signed, and yet no statement
            found = [f"this statement has another form: {type(error).__name__} {error}"]
    else:
        from .verify import verify

        if options.experiment is None:
            raise ValueError("--experiment is missing: the file that the record names")
        members = public_keys(options.signers, MEMBER)
        found = verify(options.record, options.experiment, trusted, members, heads)
    for fault in found:
        show(f"FAULT: {fault}")
    if not found:
        print(
            "No fault was found."
            if heads
            else "No fault was found. No site's heads were compared (--heads)."
        )
    return 1 if found else 0
