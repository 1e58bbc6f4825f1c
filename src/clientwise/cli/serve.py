"""Follow runs in a browser: `clientwise serve`."""

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
            help="File with the token that readers need; created with a random token if missing.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a web page that lists runs and follows those that are running.

    Example: clientwise serve runs --port 8080
    """
    import secrets

    from ..report.server import is_loopback
    from ..report.server import serve as serve_runs

    folders = folders or [Path("runs")]
    for folder in folders:
        if not folder.is_dir():
            fail(f"{folder}: no such folder")
    token = None
    if token_file is not None:
        token = token_in(token_file)
    elif not is_loopback(host):
        token = secrets.token_urlsafe(16)

    def say(url: str) -> None:
        if token_file is not None:  # what is printed may end up in a log
            url = f"{url.partition('?')[0]}?token=... (the token is in {token_file})"
        print_lines([url, "Press Ctrl-C to stop."])

    serve_runs(folders, host, port, token, say)


def token_in(path: Path) -> str:
    """The token in a file that only its owner can read; a missing file gets a random token."""
    import secrets

    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    if path.stat().st_mode & 0o077:
        fail(f"{path}: other users can read it. Run: chmod 600 {path}")
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        fail(f"{path}: is empty. Delete it to have a token created.")
    return token
