"""The `clientwise` command. Every module has the commands of one subject.

Commands import what they need when they run, so that `clientwise --help` does not wait for PyTorch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ClientwiseError
from .configs import check, list_parts, new
from .console import fail, out, print_in_any_locale, reason
from .experiments import demo, run, tune
from .results import export, predict, report, show

__all__ = ["app", "main"]

app = typer.Typer(
    help="Federated learning that weighs every client by what it brings.",
    epilog="Start with `clientwise demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PANELS = {  # in the order of --help
    "Begin": (demo, new),
    "Experiments": (check, run, tune, list_parts),
    "Results": (show, report, export, predict),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        _name = _command.__name__.removesuffix("_parts")
        app.command(_name, rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the command; an error that the user can solve is one line without a traceback."""
    print_in_any_locale()
    try:
        app()
    except ClientwiseError as error:
        fail(str(error))
    except OSError as error:  # the disk is full, the folder belongs to another user
        fail(reason(error))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"clientwise {version('clientwise')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass
