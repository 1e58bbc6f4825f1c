"""Write docs/config.md, and what `clientwise list` prints, from the classes and signatures of the library.

python docs/make_config.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from clientwise.experiment import reference
from clientwise.experiment.config.schema import Experiment
from clientwise.experiment.config_file import METHODS
from clientwise.experiment.matrix.grid import MatrixSettings
from clientwise.experiment.reference import (
    Schema,
    as_toml,
    in_words,
    parts_list,
    schema_of,
)
from clientwise.experiment.tune import TuneSettings
from clientwise.writing import write_atomically

PAGE = Path(__file__).with_name("config.md")
LISTED = Path(reference.__file__).with_name("parts.json")

PARTS = """\
Each part is listed with its options. `=` gives the default of an option, and `/` its other choices. An option without a
default is required, unless it is marked as optional."""
INTRODUCTION = """\
# Config reference

`make docs` generates this page from the code. `clientwise list` prints the parts in the terminal.

An experiment is one TOML file. `clientwise check` reports all unknown keys, wrong types and missing files at
once, then all impossible combinations. Where a key takes a *part*, write its name, `score = "mean"`,
or a table with its name and options, `score = { name = "owa", quantifier = "most" }`.

`clientwise run --set key=value` changes any key. `--preset quick` applies the table
`[presets.quick]` of the file:

- Tables are merged key by key.
- A part of another name replaces the former one.
- A list of names as `methods` keeps only those methods, as `--methods FedAvg,AdaFed` does.

Relative paths start from the folder of the config, also in `--set` and when the command runs elsewhere. Those of the
options `--data-dir` and `--out` start from the current folder.

Editors complete and check configs by a JSON schema. Write it with
`clientwise list --schema > clientwise.schema.json` and name it in the first line of the TOML file:
`#:schema ./clientwise.schema.json`. `clientwise list --schema --config my.toml` includes the parts of its plugins.
"""
NAMED = """\
Where a method is expected, you can write its name: `methods = ["FedAvg", "FedYogi"]`. Other
keys change it: `{ name = "FedYogi", server_step.learning_rate = 0.1 }`. `like` gives the changed
method a name of its own: `{ name = "mine", like = "FedYogi", server_step.learning_rate = 0.1 }`.
`clientwise list FedYogi` shows a method as TOML. [Methods](methods.md) describes each of these:"""


def markdown() -> str:
    """The whole reference as a page."""
    lines = [INTRODUCTION]
    experiment = schema_of(Experiment)
    sections = [("Top level", experiment), *_tables(experiment, experiment["$defs"])]
    sections += [("[matrix]", schema_of(MatrixSettings)), ("[tune]", schema_of(TuneSettings))]
    for title, table in sections:
        lines += [f"## {title}", "", table["description"], ""]
        required = table.get("required", ())
        for key, one in table["properties"].items():
            lines.append(_entry(key, one, key in required))
        lines.append("")
    lines += ["# Methods by name", "", NAMED, "", ", ".join(f"`{name}`" for name in METHODS), ""]
    lines += ["# Parts", "", PARTS, ""]
    for plural, kind in parts_list()["kinds"].items():
        lines += [f"## {plural}", "", f"{kind['about']}.", ""]
        for part in kind["parts"].values():
            shown, _, measured = part["heading"].partition(" · ")
            mark = f" *{measured.split()[0].capitalize()}.*" if measured else ""
            lines.append(f"- `{shown}`: {part['about']}{mark}")
        lines.append("")
    return "\n".join(lines)


def _tables(table: Schema, known: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """The tables in a table, as TOML writes their names. What differs from [training] is left out."""
    for key, one in table["properties"].items():
        one = next(iter(one.get("anyOf", ())), one)
        is_list = one.get("type") == "array"
        name = (one["items"] if is_list else one).get("$ref", "").removeprefix("#/$defs/")
        if name in known and name not in ("TrainingOverride", "FineTune"):
            yield f"[[{path}{key}]]" if is_list else f"[{path}{key}]", known[name]
            yield from _tables(known[name], known, f"{path}{key}.")


def _entry(key: str, schema: Schema, required: bool) -> str:
    kind = in_words(schema)
    default = schema.get("default")
    if required:
        kind += ", required"
    elif default not in (None, "", [], {}) and "$ref" not in str(
        schema
    ):  # a table's are with its keys
        kind += f", default {as_toml(default)}"
    return f"- `{key}` ({kind}): {schema['description']}"


def parts_json() -> str:
    """What `clientwise list` prints, as a file: the command then needs no PyTorch."""
    return json.dumps(parts_list(), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    write_atomically(LISTED, f"{parts_json()}\n".encode())
    write_atomically(PAGE, f"{markdown()}\n".encode())
