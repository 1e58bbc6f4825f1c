"""What a config can say: `clientwise new`, `check`, `list`."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..report import escape
from .console import command_name, err, fail, out, print_lines, writing_to
from .options import (
    ConfigArgument,
    DataDirOption,
    MethodsOption,
    PresetOption,
    SeedsOption,
    SetOption,
    load,
)

if TYPE_CHECKING:
    from ..data.federated import FederatedData
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix

FEW = 20  # different numbers in a column are classes, more are a number to predict


def new(
    table: Annotated[
        Path | None, Argument(help="Your samples: a CSV, TSV or Parquet file. Default: digits.")
    ] = None,
    target: Annotated[str | None, Option(metavar="COLUMN", help="The column to predict.")] = None,
    client: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="The column that names the client of a row. Default: five clients share the rows.",
        ),
    ] = None,
    out_file: Annotated[Path, Option("--out", help="The config to write.")] = Path(
        "experiment.toml"
    ),
) -> None:
    """Write a commented config that runs, of your own table or of handwritten digits.

    Example: clientwise new patients.csv --target ill --client hospital
    """
    from ..writing import write_atomically

    if table is not None and table.suffix == ".toml":
        fail(f"{table}: is not a table; name the config with --out {table}")
    if out_file.exists():
        fail(f"{out_file}: exists already; name another file with --out")
    data = '"digits"                          # 1,797 images, inside scikit-learn'
    partition = (
        '{ name = "dirichlet", clients = 10, concentration = 0.5 }  # classes spread unequally'
    )
    lines = []
    if table is not None:
        data, said = _own_data(table, target, client, out_file.parent)
        lines.append(said)
        partition = '{ name = "iid", clients = 5 }'
    if client is not None:
        partition = '"by_id"                      # every client has its own rows'
    template = Template(files("clientwise").joinpath("new.toml").read_text("utf-8"))
    text = template.substitute(
        name=(table or out_file).stem.replace('"', ""),
        file=out_file,
        data=data,
        partition=partition,
    )
    with writing_to(out_file):
        write_atomically(out_file, text.encode())
    command = command_name()
    print_lines(
        [
            *lines,
            f"Written to {out_file}. Next:",
            f"  {command} check {out_file} --data",
            f"  {command} run {out_file}",
        ]
    )


def _own_data(table: Path, target: str | None, client: str | None, folder: Path) -> tuple[str, str]:
    """The key `data` of a user's table, and what is predicted. Paths start from the `folder` of the config."""
    from ..data.table import read_table
    from ..registry import suggest

    frame = read_table(table)
    for option, column in {"target": target, "client": client}.items():
        if column is not None and column not in frame:
            fail(f"{table}: --{option} {column}: no such column{suggest(column, frame.columns)}")
    if target is None:
        fail(f"{table}: --target COLUMN: name the column to predict, one of {', '.join(frame)}")
    found: dict[str, Any] = {"files": os.path.relpath(table, folder), "target": target}
    if client is not None:
        found["client"] = client
    count, is_number = frame[target].nunique(), frame[target].dtype.kind in "iuf"
    said = f"{target} has {count} different values and is predicted as "
    if is_number and count > FEW:
        found["kind"] = "regression"
        said += 'numbers; for classes, set kind = "classification" in data'
    else:
        said += "classes"
        if is_number and count > 2:
            said += '; for numbers, set kind = "regression" in data'
    inputs = frame.drop(columns=[column for column in (target, client) if column is not None])
    words = inputs.select_dtypes(exclude="number")
    names = [column for column in words if words[column].is_unique]  # of rows: nothing to learn
    found["categories"] = [column for column in words if column not in names]
    found["ignore"] = names
    keys = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in found.items() if value
    ]
    return f'{{ name = "table", {", ".join(keys)} }}', f"{said}."


def check(
    file: ConfigArgument,
    with_data: Annotated[
        bool, Option("--data", help="Also show which samples every client would hold.")
    ] = False,
    seeds: SeedsOption = None,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    server_data: Annotated[
        Path | None, Option(help="For a deployment: the samples of the server (.npz).")
    ] = None,
    changes: SetOption = None,
) -> None:
    """Check a config and its presets, and describe what it would run and cost.

    Example: clientwise check my.toml --seeds 1-5 --data
    """
    from ..errors import Problems
    from ..experiment.config_file import presets_of

    keys = {"seeds": seeds, "methods": methods, "data_dir": data_dir}
    problems = Problems()
    loaded = None
    with problems.noted():
        loaded = load(file, changes, preset, **keys)
    presets: list[str] = []
    with problems.noted():
        presets = [] if preset else presets_of(file)
    for name in presets:
        with problems.noted():
            load(file, changes, name)
    problems.refuse()
    from ..experiment.checks.describe import describe
    from ..experiment.matrix.grid import Matrix

    if isinstance(loaded, Matrix):
        if with_data:
            fail(f"{file}: has a matrix of experiments; --data takes a config without one")
        _check_matrix(loaded)
        return
    assert loaded is not None, "what is wrong was refused"
    lines = describe(loaded, _deployed_data(loaded, server_data))
    if with_data:
        if loaded.data is None or loaded.partition is None:
            fail(f"{file}: names no data, or no partition: --data has nothing to show")
        _show_data(loaded)
    print_lines(lines)
    others = f" (and its presets: {', '.join(presets)})" if presets else ""
    out.print(f"[green]ok:[/] {escape(f'{file}{others}')}", soft_wrap=True)


def _show_data(experiment: Experiment) -> None:
    """Which samples every client would hold with the first seed: sizes, classes, columns, the server's set."""
    from ..data.summary import summarise
    from ..experiment.build.data import build_data, load_samples
    from ..report.about import data_items
    from ..report.terminal import print_items

    assert experiment.data is not None
    assert experiment.partition is not None
    seed = experiment.seeds[0]
    federated, hostile = build_data(experiment, load_samples(experiment), seed)
    summary = summarise(federated)
    clients = f"{len(summary.train):,} clients"
    title = f"{experiment.data.name}, {experiment.partition.name}, {clients}, seed {seed}"
    print_items(out, data_items(summary, title, sorted(hostile)))


def _deployed_data(experiment: Experiment, server: Path | None) -> FederatedData | None:
    """The data to check a deployment with; None where the config describes no deployment.

    These are the samples of the `server`; the participants keep theirs.
    """
    from ..errors import needing

    if server is None and (experiment.data is not None or not experiment.flower.clients):
        return None
    with needing("flower", "Flower"):
        from ..hosts.flower.data import server_side
    return server_side(experiment, str(server or ""))


def _check_matrix(matrix: Matrix) -> None:
    """Describe every federation, and check every attack on it."""
    from ..errors import Problems
    from ..experiment.checks.against_data import validate
    from ..experiment.checks.describe import describe
    from ..report.items import counted

    problems = Problems()
    for name in matrix.federations:
        first, *others = [cell for cell in matrix.cells if cell.data == name]
        with problems.noted(first.source):
            print_lines(describe(first.experiment))
        one_per_attack = {cell.attack: cell for cell in others}
        with err.status(f"Checking the columns of {escape(name)}"):
            for cell in one_per_attack.values():
                with problems.noted(cell.source):
                    validate(cell.experiment, None)
    problems.refuse()
    cells = counted(len(matrix.cells), "cell")
    federations = counted(len(matrix.federations), "federation")
    out.print(f"[green]ok:[/] {cells}, each as above, on {federations}", soft_wrap=True)


def list_parts(
    kind: Annotated[
        str | None,
        Argument(
            help="A kind of part (criteria, datasets, methods ...), the name of a part, which is "
            "shown with its options, or of a method, which is shown as TOML. Default: all kinds."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        Option(help="With --schema: a TOML file whose plugins have parts of their own."),
    ] = None,
    schema: Annotated[
        bool,
        Option(
            "--schema",
            help="Print the JSON schema of a config, with which editors complete and check TOML.",
        ),
    ] = False,
) -> None:
    """List the parts and named methods with their descriptions and options.

    Examples: clientwise list criteria, clientwise list FedYogi, clientwise list --schema
    """
    if schema:
        from ..experiment.load import import_plugins
        from ..experiment.reference import config_schema

        if config is not None:
            import_plugins(config)
        print(json.dumps(config_schema(), indent=2, ensure_ascii=False))
        return
    file = Path(__file__).parents[1] / "experiment" / "parts.json"  # see `docs/make_config.py`
    listed = json.loads(file.read_text("utf-8"))
    from ..registry import closest, suggest

    if config is not None:
        fail("--config: goes with --schema, which then has the parts of its plugins")
    methods = {
        name: {**one, "heading": name, "explained": [f"# {one['about']}", one["toml"]]}
        for name, one in listed["methods"].items()
    }
    about = "Methods with a name; `clientwise list FedYogi` shows one as TOML"
    kinds = {"methods": {"about": about, "parts": methods}, **listed["kinds"]}
    named = [one["parts"][kind] for one in kinds.values() if kind in one["parts"]]
    if kind is None or kind in kinds:
        for name in kinds if kind is None else [kind]:
            _print_kind(name, kinds[name])
    elif named:
        for part in named:
            print_lines([*part["explained"], ""])
    else:
        close = closest(kind, [*kinds, *(name for one in kinds.values() for name in one["parts"])])
        hint = suggest(kind, [close] if close else kinds)
        fail(f"unknown kind or part {kind!r}{hint}")


def _print_kind(name: str, kind: Any) -> None:
    out.print(f"\n[bold]{name}[/]: {escape(kind['about'])}")
    for part in kind["parts"].values():
        # What is behind the point is not of the part's own colour
        heading, point, source = part["heading"].partition(" · ")
        out.print(f"  [cyan]{escape(heading)}[/]{point}{source}", soft_wrap=True)
        out.print(f"      {escape(part['about'])}", soft_wrap=True)
