"""The config reference and what `clientwise list` prints, generated from the code.

`python -m clientwise.experiment.reference` writes docs/config.md and parts.json into a checkout.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from ..attacks import ATTACKS
from ..core.aggregation.before import BEFORE
from ..core.aggregation.rules import RULES
from ..core.aggregation.server_step import SERVER_STEPS
from ..core.criteria import CRITERIA, CriterionDeclaration, source_of
from ..core.evidence import EVIDENCE
from ..core.objective.adapt_loss import LOSS_ADAPTERS
from ..core.objective.loss import LOSSES
from ..core.objective.metrics import METRICS
from ..core.sampling import SAMPLINGS
from ..core.training import OPTIMIZERS, SCHEDULES, TRANSFORMS
from ..core.weights.priority import ADJUSTMENTS
from ..core.weights.scores import SCORES
from ..core.weights.weighting import NORMALISERS
from ..data.datasets import DATASETS
from ..data.devices import DISTRIBUTIONS
from ..data.features import FEATURES
from ..data.partition import PARTITIONS
from ..models.networks import MODELS
from ..record.known_parts import PARTS_FILE
from ..registry import Option, Part, Registry
from ..writing import write_atomically
from .config.named import METHODS, method_toml
from .config.schema import Experiment
from .config.settings import TrainingOverride
from .config.tables import ConfigTable, table_in, to_plain
from .matrix.grid import MatrixSettings
from .trackers import TRACKERS
from .tune import TuneSettings

_REGISTRIES = (
    CRITERIA,
    NORMALISERS,
    SCORES,
    EVIDENCE,
    BEFORE,
    RULES,
    ADJUSTMENTS,
    LOSS_ADAPTERS,
    SERVER_STEPS,
    OPTIMIZERS,
    LOSSES,
    SCHEDULES,
    TRANSFORMS,
    SAMPLINGS,
    METRICS,
    DATASETS,
    FEATURES,
    PARTITIONS,
    MODELS,
    ATTACKS,
    DISTRIBUTIONS,
    TRACKERS,
)
KINDS: dict[str, Registry[Any]] = {registry.plural: registry for registry in _REGISTRIES}


def signature(registry: Registry[Any], name: str) -> str:
    """A part with its options, as in `class_weights (epsilon: float = 0.1)`."""
    options = [_option(option) for option in registry.options(name)]
    if not options:
        return name
    return f"{name} ({'; '.join(options)})"


def explained(registry: Registry[Any], name: str) -> list[str]:
    """A part in lines of text: what it does, and its options with what they mean."""
    about, meanings = _documented(registry.get(name))
    lines = [f"{registry.kind} {name}", *about]
    options = registry.options(name)
    if not options:
        return [*lines, "", "It has no options."]
    lines += ["", "Options:"]
    for option in options:
        need = ", required" if option.required else ""
        lines.append(f"  {_option(option)}{need}")
        if option.name in meanings:
            lines.append(f"      {meanings[option.name]}")
    return lines


def _documented(part: Any) -> tuple[list[str], dict[str, str]]:
    """The lines of a docstring before its first section, and the meanings in its section Args."""
    text = inspect.getdoc(part) or ""
    sections = re.split(r"\n\n(?=[A-Z][a-z]+:\n)", text)
    arguments = [section for section in sections[1:] if section.startswith("Args:\n")]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", "\n".join(arguments), re.MULTILINE)
    return sections[0].splitlines(), {name: " ".join(words.split()) for name, words in entries}


def _option(option: Option) -> str:
    text = f"{option.name}: {type_name(option.type)}"
    if option.required:
        return text
    if option.default is None:
        return f"{text}, optional"
    return f"{text} = {_value(option.default)}"


def type_name(kind: Any) -> str:
    """A type in the words of TOML.

    >>> type_name(list[int] | None), type_name(Literal["a", "b"])
    ('list of int', '"a" or "b"')
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " or ".join(_value(argument) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        named = [argument for argument in arguments if argument is not type(None)]
        if Part in named:  # which is a text where it has no options
            named = [argument for argument in named if argument is not str]
        return " or ".join(type_name(argument) for argument in named)
    if kind is Part:
        return "part"
    if inspect.isclass(kind) and (issubclass(kind, ConfigTable) or is_dataclass(kind)):
        return "table"
    name = getattr(origin or kind, "__name__", str(kind))
    if name in ("list", "Sequence", "tuple"):
        return f"list of {type_name(arguments[0])}" if arguments else "list"
    if name in ("Mapping", "dict"):
        return f"table of {type_name(arguments[1])} by name"
    return {"str": "string", "bool": "boolean"}.get(name, name)


def _value(value: Any) -> str:
    """A value as TOML has it; – for None, which TOML does not have."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Part):
        if not value.options:
            return f'"{value.name}"'
        if list(value.options) == ["value"]:  # a plain number in the config means this
            return _value(value.options["value"])
        options = ", ".join(f"{key} = {_value(option)}" for key, option in value.options.items())
        return f'{{ name = "{value.name}", {options} }}'
    if isinstance(value, ConfigTable):
        return "as below"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    return str(value)


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
`clientwise schema > clientwise.schema.json` and name it in the first line of the TOML file:
`#:schema ./clientwise.schema.json`. `clientwise schema my.toml` includes the parts of its plugins.
"""
NAMED = """\
Where a method is expected, you can write its name: `methods = ["FedAvg", "FedYogi"]`. Other
keys change it: `{ name = "FedYogi", server_step.learning_rate = 0.1 }`. `like` gives the changed
method a name of its own: `{ name = "mine", like = "FedYogi", server_step.learning_rate = 0.1 }`.
`clientwise list FedYogi` shows a method as TOML. [Methods](methods.md) describes each of these:"""


def markdown() -> str:
    """The whole reference as a page."""
    lines = [INTRODUCTION]
    sections: list[tuple[str, type[BaseModel]]] = [("Top level", Experiment)]
    sections += _tables(Experiment)
    sections += [("[matrix]", MatrixSettings), ("[tune]", TuneSettings)]
    for title, section in sections:
        lines += [f"## {title}", "", inspect.getdoc(section) or "", ""]
        lines += [_field_entry(name, field) for name, field in section.model_fields.items()]
        lines.append("")
    lines += ["# Methods by name", "", NAMED, "", ", ".join(f"`{name}`" for name in METHODS), ""]
    lines += ["# Parts", "", PARTS, ""]
    for plural, registry in KINDS.items():
        lines += [f"## {plural}", "", f"{registry.description}.", ""]
        lines += [_part_entry(registry, name) for name in registry]
        lines.append("")
    return "\n".join(lines)


def _tables(table: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The tables in a table, as TOML writes their names. What differs from [training] is left out."""
    for name, field in table.model_fields.items():
        inner = table_in(field.annotation)
        if inner is None or issubclass(inner, TrainingOverride):
            continue
        key = f"{path}{name}"
        is_list = type_name(field.annotation).startswith("list")
        yield f"[[{key}]]" if is_list else f"[{key}]", inner
        yield from _tables(inner, f"{key}.")


def _part_entry(registry: Registry[Any], name: str) -> str:
    options = [_short_option(option) for option in registry.options(name)]
    call = f"{name}({'; '.join(options)})" if options else name
    meaning = registry.describe(name)
    if registry is CRITERIA:
        source, *_ = source_of(Part(name, {})).split()
        meaning += f" *{source.capitalize()}.*"
    return f"- `{call}`: {meaning}"


def _short_option(option: Option) -> str:
    """An option without its type where the default shows it."""
    if option.required or option.default is None:
        return _choices(_option(option))
    default = _value(option.default)
    others = type_name(option.type).split(" or ") if isinstance(option.default, str) else []
    choices = [default, *(other for other in others if other not in (default, "string"))]
    return f"{option.name}={'/'.join(choices)}"


def _choices(text: str) -> str:
    return text.replace('" or "', '"/"')


def _field_entry(name: str, field: FieldInfo) -> str:
    kind = _choices(type_name(field.annotation))
    if field.is_required():
        kind += ", required"
    elif table_in(field.annotation) is None and field.default not in (None, "", [], {}):
        kind += f", default {_value(field.default)}"
    return f"- `{name}` ({kind}): {field.description}"


def parts_list() -> dict[str, Any]:
    """All that `clientwise list` prints, and what parts declare. Both are read from a file, without PyTorch."""
    kinds = {}
    for plural, registry in KINDS.items():
        parts = {name: _listed_part(registry, name) for name in registry}
        kinds[plural] = {"about": registry.description, "parts": parts}
    methods = {name: {"about": about, "toml": method_toml(name)} for name, about in METHODS.items()}
    return {"methods": methods, "kinds": kinds}


def _listed_part(registry: Registry[Any], name: str) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "heading": _heading(registry, name),
        "about": registry.describe(name),
        "explained": explained(registry, name),
    }
    declared = registry.declared(name)
    if declared.needs:
        listed["needs"] = sorted(declared.needs)
    if isinstance(declared, CriterionDeclaration):
        listed["measured_by"] = declared.measured_by
    return listed


def _heading(registry: Registry[Any], name: str) -> str:
    if registry is CRITERIA:
        return f"{signature(registry, name)} · {source_of(Part(name, {}))}"
    return signature(registry, name)


if __name__ == "__main__":
    _here = Path(__file__)
    _text = json.dumps(parts_list(), indent=1, ensure_ascii=False)
    write_atomically(PARTS_FILE, f"{_text}\n".encode())
    write_atomically(_here.parents[3] / "docs" / "config.md", f"{markdown()}\n".encode())


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """The schema of a config file, with all parts that are registered now."""
    schema = _schema_of(Experiment)
    matrix = _schema_of(MatrixSettings)
    tune = _schema_of(TuneSettings)
    definitions = {
        one: kind for part in (schema, matrix, tune) for one, kind in part.pop("$defs", {}).items()
    }
    properties = schema["properties"]
    properties["methods"]["items"] = _method_schema(definitions["MethodSettings"])
    properties["seeds"] = _list_or_text(properties["seeds"])
    hostile = definitions["HostileClients"]["properties"]
    hostile["attack"] = {"anyOf": [hostile["attack"]["items"], hostile["attack"]]}
    preset = {"type": "object", "description": "the keys that differ with --preset"}
    properties["presets"] = {"type": "object", "additionalProperties": preset}
    properties["matrix"] = matrix
    properties["tune"] = tune
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


def _list_or_text(schema: Mapping[str, Any]) -> dict[str, Any]:
    about = {key: schema[key] for key in ("description", "default")}
    return {"anyOf": [schema, {"type": "string"}], **about}


class _Generator(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Defaults as TOML has them."""
        return to_plain(dft)


def _method_schema(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method by name, one written out, or one with `like`."""
    names = {"enum": list(METHODS), "description": "a method by name: `clientwise list methods`"}
    written_out = {"$ref": "#/$defs/MethodSettings"}
    return {"anyOf": [names, written_out, _changed_method(method)]}


def _changed_method(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method with `like`: its tables are merged with the other's, so parts need no name."""
    properties: dict[str, Any] = dict.fromkeys(method["properties"], True)
    description = "the method by name that this one changes"
    properties["like"] = {"enum": list(METHODS), "description": description}
    return {
        "type": "object",
        "properties": properties,
        "required": ["like"],
        "additionalProperties": False,
    }


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = _without_titles(model.model_json_schema(schema_generator=_Generator))
    return found


def _without_titles(value: Any) -> Any:
    """The schema without titles: pydantic gives every key its own name as a title."""
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    has_title = isinstance(value.get("title"), str)
    kept = [key for key in value if not (has_title and key == "title")]
    return {key: _without_titles(value[key]) for key in kept}
