"""What can be said in a config: as a JSON schema for editors, as docs/config.md and as the text of `clientwise list`.

The schema is made from the classes that check a config. The texts are made from the schema.
`python -m clientwise.experiment.reference` writes docs/config.md and parts.json into a checkout.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from ..core.criteria import CRITERIA, CriterionDeclaration, source_of
from ..registry import IMPORTED, Part, Registry
from ..writing import write_atomically
from .config.named import METHODS, method_toml
from .config.parts import options_schema
from .config.schema import Experiment
from .config.tables import to_plain
from .matrix.grid import MatrixSettings
from .tune import TuneSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Every kind of part: the schema imports all of their registries
KINDS: dict[str, Registry[Any]] = {plural: IMPORTED[plural] for plural in sorted(IMPORTED)}
Schema = Mapping[str, Any]
PARTS_FILE = Path(__file__).with_name("parts.json")  # all that `clientwise list` prints


# The schema -------------------------------------------------------------------------------------------------------


def config_schema() -> dict[str, Any]:
    """The schema of a config file, with all parts that are registered now."""
    schema = _schema_of(Experiment)
    properties = schema["properties"]
    definitions = schema.pop("$defs")
    tables: dict[str, type[BaseModel]] = {"matrix": MatrixSettings, "tune": TuneSettings}
    for key, table in tables.items():
        properties[key] = _schema_of(table)
        definitions |= properties[key].pop("$defs", {})
    properties["methods"]["items"] = _method_schema(definitions["MethodSettings"])
    seeds = properties["seeds"]
    about = {key: seeds[key] for key in ("description", "default")}
    properties["seeds"] = {"anyOf": [seeds, {"type": "string"}], **about}
    hostile = definitions["HostileClients"]["properties"]
    hostile["attack"] = {"anyOf": [hostile["attack"]["items"], hostile["attack"]]}
    preset = {"type": "object", "description": "the keys that differ with --preset"}
    properties["presets"] = {"type": "object", "additionalProperties": preset}
    # No key is required: a preset, or --set, may give what is missing.
    return {
        "$schema": DIALECT,
        "title": "An experiment of clientwise",
        "description": schema["description"],
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _method_schema(method: Schema) -> dict[str, Any]:
    """A method by name, one written out, or one with `like`: its tables are merged, so parts need no name."""
    names = {"enum": list(METHODS), "description": "a method by name: `clientwise list methods`"}
    about = "the method by name that this one changes"
    changed = {
        "type": "object",
        "properties": {
            **dict.fromkeys(method["properties"], True),
            "like": {"enum": list(METHODS), "description": about},
        },
        "required": ["like"],
        "additionalProperties": False,
    }
    return {"anyOf": [names, {"$ref": "#/$defs/MethodSettings"}, changed]}


class _Generator(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Defaults as TOML has them."""
        return to_plain(dft)


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = _tidy(model.model_json_schema(schema_generator=_Generator))
    return found


def _tidy(value: Any) -> Any:
    """The schema without titles, which are the names of the keys again, and with descriptions in one line."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if isinstance(value, str):
        return " ".join(value.split()) if "\n" in value else value
    if not isinstance(value, Mapping):
        return value
    has_title = isinstance(value.get("title"), str)
    return {key: _tidy(one) for key, one in value.items() if not (has_title and key == "title")}


# In words ---------------------------------------------------------------------------------------------------------


def in_words(schema: Schema) -> str:
    """The type of a value in the words of TOML.

    >>> in_words({"anyOf": [{"type": "integer"}, {"const": "full"}, {"type": "null"}]})
    'int or "full"'
    """
    if "$comment" in schema:  # of a part
        return str(schema["$comment"])
    if "anyOf" in schema:
        kinds = [in_words(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return "/".join(map(_value, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {in_words(schema['items'])}" if schema.get("items") else "list"
    inner = schema.get("additionalProperties")
    if isinstance(inner, Mapping):
        return f"table of {in_words(inner)} by name"
    kind = str(schema.get("type", "table" if "$ref" in schema else "any value"))
    return {"integer": "int", "number": "float", "object": "table"}.get(kind, kind)


def _value(value: Any) -> str:
    """A plain value as TOML has it."""
    if isinstance(value, Mapping):
        if list(value) == ["name"]:
            return _value(value["name"])
        if list(value) == ["name", "value"]:  # a plain number in the config means this
            return _value(value["value"])
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(registry: Registry[Any], name: str) -> dict[str, str]:
    """The options of a part: `epsilon=0.1`, and with its type where no default shows it."""
    schema = _tidy(options_schema(registry, name))
    found = {}
    for option, one in schema["properties"].items():
        if option in ("name", "as"):  # of every part, and of every criterion
            continue
        default = one.get("default")
        kind = in_words(one)
        if default is None:
            optional = "" if option in schema.get("required", ()) else ", optional"
            found[option] = f"{option}: {kind}{optional}"
        else:
            others = kind.split("/") if isinstance(default, str) and "/" in kind else []
            choices = dict.fromkeys([_value(default), *others])
            found[option] = f"{option}={'/'.join(choices)}"
    return found


def _call(registry: Registry[Any], name: str) -> str:
    options = "; ".join(_options(registry, name).values())
    return f"{name}({options})" if options else name


PARTS = """\
Each part is listed with its options. `=` gives the default of an option, and `/` its other choices. An option without a
default is required, unless it is marked as optional."""
INTRODUCTION = """\
# Config reference

`make docs` generates this page from the code. `clientwise list` prints the parts in the terminal.

An experiment is one TOML file. `clientwise check` reports all unknown keys, wrong types and impossible
combinations at once. Where a key takes a *part*, write its name, `score = "mean"`, or a table with its
name and options, `score = { name = "owa", quantifier = "most" }`.

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
    experiment = _schema_of(Experiment)
    sections = [("Top level", experiment), *_tables(experiment, experiment["$defs"])]
    sections += [("[matrix]", _schema_of(MatrixSettings)), ("[tune]", _schema_of(TuneSettings))]
    for title, table in sections:
        lines += [f"## {title}", "", table["description"], ""]
        required = table.get("required", ())
        for key, one in table["properties"].items():
            lines.append(_entry(key, one, key in required))
        lines.append("")
    lines += ["# Methods by name", "", NAMED, "", ", ".join(f"`{name}`" for name in METHODS), ""]
    lines += ["# Parts", "", PARTS, ""]
    for plural, registry in KINDS.items():
        lines += [f"## {plural}", "", f"{registry.description}.", ""]
        for name in registry:
            measured = (
                f" *{_source(name).split()[0].capitalize()}.*" if registry is CRITERIA else ""
            )
            lines.append(f"- `{_call(registry, name)}`: {registry.describe(name)}{measured}")
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
        kind += f", default {_value(default)}"
    return f"- `{key}` ({kind}): {schema['description']}"


def _source(criterion: str) -> str:
    return source_of(Part(criterion, {}))


def parts_list() -> dict[str, Any]:
    """All that `clientwise list` prints, and what parts declare. Both are read from a file, without PyTorch."""
    kinds = {}
    for plural, registry in KINDS.items():
        parts = {name: _listed_part(registry, name) for name in registry}
        kinds[plural] = {"about": registry.description, "parts": parts}
    methods = {name: {"about": about, "toml": method_toml(name)} for name, about in METHODS.items()}
    return {"methods": methods, "kinds": kinds}


def _listed_part(registry: Registry[Any], name: str) -> dict[str, Any]:
    declared = registry.declared(name)
    measured = f" · {_source(name)}" if registry is CRITERIA else ""
    listed: dict[str, Any] = {
        "heading": f"{_call(registry, name)}{measured}",
        "about": registry.describe(name),
        "explained": _explained(registry, name),
    }
    if declared.needs:
        listed["needs"] = sorted(declared.needs)
    if isinstance(declared, CriterionDeclaration):
        listed["measured_by"] = declared.measured_by
    return listed


def _explained(registry: Registry[Any], name: str) -> list[str]:
    """A part in lines of text: what it does, and its options with what they mean."""
    text = inspect.getdoc(registry.get(name)) or ""
    about, *sections = re.split(r"\n\n(?=[A-Z][a-z]+:\n)", text)
    arguments = "\n".join(section for section in sections if section.startswith("Args:\n"))
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE)
    meanings = {option: " ".join(words.split()) for option, words in entries}
    lines = [f"{registry.kind} {name}", *about.splitlines(), ""]
    options = _options(registry, name)
    lines.append("Options:" if options else "It has no options.")
    for option, shown in options.items():
        lines.append(f"  {shown}")
        if option in meanings:
            lines.append(f"      {meanings[option]}")
    return lines


if __name__ == "__main__":
    _here = Path(__file__)
    _text = json.dumps(parts_list(), indent=1, ensure_ascii=False)
    write_atomically(PARTS_FILE, f"{_text}\n".encode())
    write_atomically(_here.parents[3] / "docs" / "config.md", f"{markdown()}\n".encode())
