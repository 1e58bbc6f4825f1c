"""The `clientwise` command. Every module has the commands of one subject.

Commands import what they need when they run, so that `clientwise --help` does not wait for PyTorch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ClientwiseError
from .console import fail, out, print_in_any_locale, reason
from .experiments import check, counterfactual, demo, run, tune
from .parts import data, list_parts, schema
from .results import diff, export, predict, report, runs, show

__all__ = ["app", "main"]

app = typer.Typer(
    help="Federated learning that weighs every client by what it brings.",
    epilog="Start with `clientwise demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (  # in the order of --help
    run,
    check,
    tune,
    data,
    schema,
    list_parts,
    show,
    runs,
    diff,
    report,
    counterfactual,
    export,
    predict,
    demo,
):
    app.command(_command.__name__.removesuffix("_parts"))(_command)


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
