"""What a config can say and what its data look like: `clientwise data`, `list`, `schema`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..report.output.markup import escape
from .console import (
    command_name,
    fail,
    out,
    print_lines,
    writing_to,
)
from .options import (
    ConfigArgument,
    DataDirOption,
    PresetOption,
    SetOption,
    load_single,
)

if TYPE_CHECKING:
    from ..data.summary import DataSummary

PLURALS = {"criterion": "criteria", "loss": "losses"}  # of kinds; others end in s


def data(
    file: ConfigArgument,
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="Also draw it into a PNG or SVG file.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the partition. Default: the first seed of the config.",
            min=0,
            max=2**63 - 1,
            show_default=False,
        ),
    ] = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Show which samples every client would hold: sizes, classes, columns, the server's set.

    Example: clientwise data my.toml --out clients.png
    """
    from ..data.hints import column_hints
    from ..data.summary import summarise
    from ..experiment.build.data import build_data, load_samples
    from ..report.data_tables import (
        class_table,
        column_table,
        remarks,
        size_table,
    )

    if picture is not None:
        _refuse_other_pictures(picture)
    experiment = load_single(file, changes, preset, data_dir=data_dir)
    if seed is None:
        seed = experiment.seeds[0]
    samples = load_samples(experiment)
    federated, hostile = build_data(experiment, samples, seed)
    summary = summarise(federated)
    assert experiment.data is not None
    assert experiment.partition is not None
    clients = f"{len(summary.train):,} clients"
    title = f"{experiment.data.name}, {experiment.partition.name}, {clients}, seed {seed}"
    out.print(size_table(summary, title))
    print_lines(remarks(summary, experiment.server_set.shared_set, sorted(hostile)))
    for table in (class_table(summary), column_table(summary)):
        if table is not None:
            out.print()
            out.print(table)
    for hint in column_hints(samples):
        out.print(f"[bold yellow]warning:[/] {escape(hint)}", soft_wrap=True)
    if picture is not None:
        _draw_data(summary, title, picture)


def _refuse_other_pictures(path: Path) -> None:
    """End the command before any work, where the picture could not be drawn."""
    from ..report.output.figures import require_matplotlib

    if path.suffix not in (".png", ".svg"):
        fail(f"--out {path}: write a name that ends in .png or .svg")
    require_matplotlib()


def _draw_data(summary: DataSummary, title: str, path: Path) -> None:
    from ..report.data_tables import data_charts
    from ..report.output.figures import draw

    with writing_to(path):
        draw(data_charts(summary, title), path)
    print_lines([f"Picture  {path}"])


def schema(
    plugins: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file; the parts of its plugins are included.", show_default=False
        ),
    ] = None,
) -> None:
    """Print the JSON schema of a config, with which editors complete and check TOML files.

    Example: clientwise schema > clientwise.schema.json
    """
    import json

    from ..experiment.load import load_experiment
    from ..experiment.reference import config_schema

    if plugins is not None:
        load_experiment(plugins)
    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="A kind of part (criteria, datasets, methods ...), the name of a part, which is "
            "shown with its options, or of a method, which is shown as TOML. Default: all kinds.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file; also list the parts of its plugins.", show_default=False),
    ] = None,
) -> None:
    """List the parts and named methods with their descriptions and options.

    Examples: clientwise list criteria, clientwise list FedYogi, clientwise list --config my.toml
    """
    from ..record.known_parts import listed_parts

    listed = listed_parts()
    if config is not None:
        _add_own_parts(listed, config)
    methods = listed["methods"]
    kinds = listed["kinds"]
    named = [one["parts"][kind] for one in kinds.values() if kind in one["parts"]]
    plural = PLURALS.get(kind or "", f"{kind}s")
    if not named and plural in ("methods", *kinds):
        kind = plural
    if kind is None:
        _list_methods(methods)
        for name in kinds:
            _list_kind(name, kinds[name])
        if config is None:
            print_lines(_plugin_hints(""))
    elif kind == "methods":
        _list_methods(methods)
    elif kind in kinds:
        _list_kind(kind, kinds[kind])
    elif kind in methods:
        print_lines([f"# {methods[kind]['about']}", methods[kind]["toml"]])
    elif named:
        for part in named:
            print_lines([*part["explained"], ""])
    else:
        hints = [] if config else _plugin_hints(f"{kind} ")
        message = f"unknown kind or part {kind!r}{_suggestion(kind, listed)}"
        fail("\n".join([message, *hints]))


def _add_own_parts(listed: Any, config: Path) -> None:
    """Import the plugins of a config, and add their parts with the module that has them."""
    from ..experiment.load import import_plugins
    from ..experiment.reference import KINDS, parts_list

    import_plugins(config)
    for kind, found in parts_list()["kinds"].items():
        known = listed["kinds"][kind]["parts"]
        for name, part in found["parts"].items():
            if name not in known:
                mark = f"yours, in {KINDS[kind].get(name).__module__}"
                part["heading"] += f" · {mark}"
                part["explained"][0] += f" ({mark})"
                known[name] = part


def _plugin_hints(arguments: str) -> list[str]:
    """How to list the plugins of the configs in the current folder. They are not imported unasked."""
    from ..record.toml_text import read_table

    return [
        f"{file} has plugins. To list their parts, too: {command_name()} list {arguments}--config {file}"
        for file in sorted(Path().glob("*.toml"))
        if read_table(file).get("plugins")
    ]


def _suggestion(word: str, listed: Any) -> str:
    """The closest name of any part, method or kind; otherwise the kinds."""
    from ..registry import closest, suggest

    kinds = ["methods", *listed["kinds"]]
    parts = [name for one in listed["kinds"].values() for name in one["parts"]]
    close = closest(word, [*kinds, *listed["methods"], *parts])
    return suggest(word, [close] if close else kinds)


def _list_methods(methods: Mapping[str, Any]) -> None:
    out.print(
        "\n[bold]methods[/]: Methods with a name; `clientwise list FedYogi` shows one as TOML"
    )
    for name, method in methods.items():
        out.print(f"  [cyan]{escape(name)}[/]\n      {escape(method['about'])}", soft_wrap=True)


def _list_kind(name: str, kind: Any) -> None:
    out.print(f"\n[bold]{name}[/]: {escape(kind['about'])}")
    for part in kind["parts"].values():
        # What is behind the point is not of the part's own colour
        heading, point, source = part["heading"].partition(" · ")
        out.print(f"  [cyan]{escape(heading)}[/]{point}{source}", soft_wrap=True)
        out.print(f"      {escape(part['about'])}", soft_wrap=True)
