"""What a config can say and what its data look like: `clientwise data`, `list`, `schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..report import escape
from .console import (
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

PLURALS = {"criterion": "criteria", "loss": "losses"}  # of kinds; others end in s


def data(
    file: ConfigArgument,
    picture: Annotated[
        Path | None, Option("--out", help="Also draw it into a PNG or SVG file.")
    ] = None,
    seed: Annotated[
        int | None,
        Option(
            help="Seed of the partition. Default: the first seed of the config.",
            min=0,
            max=2**63 - 1,
        ),
    ] = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Show which samples every client would hold: sizes, classes, columns, the server's set.

    Example: clientwise data my.toml --out clients.png
    """
    from ..data.summary import column_hints, summarise
    from ..experiment.build.data import build_data, load_samples
    from ..report.about import data_chart, data_items
    from ..report.charts import draw
    from ..report.terminal import print_items

    if picture is not None and picture.suffix not in (".png", ".svg"):
        fail(f"--out {picture}: write a name that ends in .png or .svg")
    experiment = load_single(file, changes, preset, data_dir=data_dir)
    assert experiment.data is not None
    assert experiment.partition is not None
    seed = experiment.seeds[0] if seed is None else seed
    samples = load_samples(experiment)
    federated, hostile = build_data(experiment, samples, seed)
    summary = summarise(federated)
    clients = f"{len(summary.train):,} clients"
    title = f"{experiment.data.name}, {experiment.partition.name}, {clients}, seed {seed}"
    weighs_by_report = experiment.server_set.shared_set
    print_items(out, data_items(summary, title, weighs_by_report, sorted(hostile)))
    for hint in column_hints(samples):
        out.print(f"[bold yellow]warning:[/] {escape(hint)}", soft_wrap=True)
    if picture is not None:
        with writing_to(picture):
            draw(data_chart(summary, title), picture)
        print_lines([f"Picture  {picture}"])


def schema(
    plugins: Annotated[
        Path | None,
        Argument(help="A TOML file; the parts of its plugins are included."),
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
        Argument(
            help="A kind of part (criteria, datasets, methods ...), the name of a part, which is "
            "shown with its options, or of a method, which is shown as TOML. Default: all kinds."
        ),
    ] = None,
    config: Annotated[
        Path | None, Option(help="A TOML file; also list the parts of its plugins.")
    ] = None,
) -> None:
    """List the parts and named methods with their descriptions and options.

    Examples: clientwise list criteria, clientwise list FedYogi, clientwise list --config my.toml
    """
    file = Path(__file__).parents[1] / "experiment" / "parts.json"  # see `experiment/reference.py`
    listed = json.loads(file.read_text("utf-8"))
    from ..registry import closest, suggest

    if config is not None:
        _add_own_parts(listed, config)
    methods, kinds = listed["methods"], listed["kinds"]
    named = [one["parts"][kind] for one in kinds.values() if kind in one["parts"]]
    plural = PLURALS.get(kind or "", f"{kind}s")
    if not named and plural in ("methods", *kinds):
        kind = plural
    if kind in methods:
        print_lines([f"# {methods[kind]['about']}", methods[kind]["toml"]])
    elif kind is None or kind == "methods" or kind in kinds:
        if kind in (None, "methods"):
            about = "Methods with a name; `clientwise list FedYogi` shows one as TOML"
            headed = {name: {"heading": name, **method} for name, method in methods.items()}
            _print_kind("methods", {"about": about, "parts": headed})
        for name in kinds:
            if kind in (None, name):
                _print_kind(name, kinds[name])
    elif named:
        for part in named:
            print_lines([*part["explained"], ""])
    else:
        words = ["methods", *kinds]
        parts = [name for one in kinds.values() for name in one["parts"]]
        close = closest(kind, [*words, *methods, *parts])
        hint = suggest(kind, [close] if close else words)
        plugins = "" if config else "\nParts of plugins are listed with --config FILE."
        fail(f"unknown kind or part {kind!r}{hint}{plugins}")


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


def _print_kind(name: str, kind: Any) -> None:
    out.print(f"\n[bold]{name}[/]: {escape(kind['about'])}")
    for part in kind["parts"].values():
        # What is behind the point is not of the part's own colour
        heading, point, source = part["heading"].partition(" · ")
        out.print(f"  [cyan]{escape(heading)}[/]{point}{source}", soft_wrap=True)
        out.print(f"      {escape(part['about'])}", soft_wrap=True)
