"""Follow runs in a browser, and who may: `clientwise serve`, `token`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import fail, print_lines


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...",
            help="Run folders, or folders of runs. Default: runs/",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on, or unix:PATH. Remote readers need a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the operator's token; created with a random token if missing.",
            show_default=False,
        ),
    ] = None,
    roles_file: Annotated[
        Path | None,
        typer.Option(
            "--roles",
            help="File with the tokens of the board and of sites, made by `clientwise token`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a web page that lists runs and follows those that are running.

    Example: clientwise serve runs --port 8080
    """
    import secrets

    from ..report.server import Roles, is_loopback
    from ..report.server import serve as serve_runs

    folders = folders or [Path("runs")]
    for folder in folders:
        if not folder.is_dir():
            fail(f"{folder}: no such folder")
    roles = Roles(roles_file) if roles_file else None
    if roles is not None:
        roles.readers()  # says now what is wrong with the file
    token = None
    if token_file is not None:
        token = token_in(token_file)
    elif roles is not None or not is_loopback(host):
        token = secrets.token_urlsafe(16)

    def say(url: str) -> None:
        if token_file is not None:  # what is printed may end up in a log
            url = f"{url.partition('?')[0]}?token=... (the token is in {token_file})"
        print_lines([url, "Press Ctrl-C to stop."])

    serve_runs(folders, host, port, token, roles, say)


def token(
    roles_file: Annotated[
        Path, typer.Argument(metavar="ROLES", help="The roles file.", show_default=False)
    ],
    site: Annotated[
        str | None,
        typer.Option(help="For a site, by its name: opens its statements.", show_default=False),
    ] = None,
    board: Annotated[bool, typer.Option("--board", help="For the board: opens reports.")] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Make the token invalid instead, at once.")
    ] = False,
) -> None:
    """Make a token for a site or for the board, for `clientwise serve --roles`.

    The file has only hashes of tokens. A new token replaces the earlier one of the same site or of the
    board. Without --site and --board, the command lists whose tokens there are.

    Example: clientwise token roles.json --site Basel
    """
    from ..report.server.roles import BOARD, Reader, Roles

    roles = Roles(roles_file)
    if board and site is not None:
        fail("give --site or --board, not both: each has its own token")
    if site is not None and not site.strip():
        fail("--site: give the name of the site, as it is in the record")
    if site is None and not board:
        if revoke:
            fail("--revoke needs --site NAME or --board")
        lines = [f"{one.site or one.role:<20} opens {one.opens}" for one in roles.readers()]
        print_lines(lines or ["No tokens. Make one: clientwise token ROLES --site NAME"])
        return
    reader = BOARD if site is None else Reader("site", site)
    if revoke:
        roles.revoke(reader)
        print_lines([f"Revoked      the token that opened {reader.opens}"])
        return
    made = roles.give(reader)
    print_lines(
        [
            f"Token        {made}",
            f"Opens        {reader.opens}, at the server's address with ?token=TOKEN",
            "Keep it      it is not stored: a lost token is replaced by a new one",
        ]
    )


def token_in(path: Path) -> str:
    """The token in a file that only its owner can read; a missing file gets a random token."""
    import secrets

    from ..report.server.roles import refuse_shared
    from ..writing import write_atomically

    if not path.exists():
        write_atomically(path, f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
    refuse_shared(path)
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        fail(f"{path}: is empty. Delete it to have a token created.")
    return token
