"""What the config understands, generated from the code: `python -m clientwise.reference > docs/config.md`."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from .attacks import ATTACKS
from .core.adapt_loss import LOSS_ADAPTERS
from .core.aggregate import SERVER_STEPS
from .core.before import BEFORE
from .core.criteria import CRITERIA, make_criterion
from .core.evidence import EVIDENCE
from .core.metrics import METRICS
from .core.priority import ADJUSTMENTS
from .core.rules import RULES
from .core.scores import SCORES
from .core.weighting import NORMALISERS
from .data.datasets import DATASETS
from .data.devices import DISTRIBUTIONS
from .data.features import FEATURES
from .data.partition import PARTITIONS
from .experiment import settings
from .experiment.matrix import MatrixSettings
from .experiment.methods import MethodSettings, PaceSettings, WeightBounds
from .experiment.named import METHODS
from .experiment.schema import Experiment
from .experiment.tables import ConfigTable
from .models.networks import MODELS
from .registry import Part, Registry
from .trackers import TRACKERS

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
    options = [
        f"{option.name}: {type_name(option.type)}"
        + ("" if option.required else ", optional" if option.default is None else f" = {_value(option.default)}")
        for option in registry.options(name)
    ]
    return f"{name} ({'; '.join(options)})" if options else name


def type_name(kind: Any) -> str:
    """A type in the words of TOML.

    >>> type_name(list[int] | None), type_name(Literal["a", "b"])
    ('list of int', '"a" or "b"')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " or ".join(_value(argument) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(argument) for argument in arguments if argument is not type(None))
    if kind is Part:
        return "part"
    if inspect.isclass(kind) and issubclass(kind, ConfigTable):
        return "table"
    name = getattr(origin or kind, "__name__", str(kind))
    if name in ("list", "Sequence", "tuple"):
        return f"list of {type_name(arguments[0])}" if arguments else "list"
    if name in ("Mapping", "dict"):
        return f"table of {type_name(arguments[1])} by name"
    return {"str": "string", "bool": "boolean"}.get(name, name)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Part):
        options = ", ".join(f"{key} = {_value(option)}" for key, option in value.options.items())
        return f'{{ name = "{value.name}", {options} }}' if options else f'"{value.name}"'
    if isinstance(value, ConfigTable):
        return "as below"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    return str(value)


_SECTIONS: tuple[tuple[str, type[ConfigTable]], ...] = (
    ("Top level", Experiment),
    ("[training]", settings.Training),
    ("[federation]", settings.Cohorts),
    ("[server_set]", settings.ServerSet),
    ("[evaluation]", settings.EvaluationSettings),
    ("[devices]", settings.DeviceSettings),
    ("[flower]", settings.FlowerSettings),
    ("[[hostile]]", settings.HostileClients),
    ("[[methods]]", MethodSettings),
    ("[methods.bounds]", WeightBounds),
    ("[methods.pace]", PaceSettings),
    ("[matrix]", MatrixSettings),
)


NAMED = """Where a method is expected, its name will do: `methods = ["FedAvg", "FedYogi"]`. With `like` it is changed:
`{ name = "mine", like = "FedYogi", server_step.learning_rate = 0.1 }`. `clientwise list FedYogi` shows what one stands
for; [methods.md](methods.md) tells what each trusts and where it differs from its paper."""


def markdown() -> str:
    """The whole reference as a page."""
    lines = [
        "# Config reference",
        "",
        "Generated from the code by `make docs`; `clientwise list` prints the parts in the terminal.",
        "",
        "An experiment is one TOML file. Unknown keys, wrong types and impossible combinations are errors, all",
        'reported before anything runs. Where a key takes a *part*, write its name, `score = "mean"`, or a table with',
        'its name and options, `score = { name = "owa", quantifier = "most" }`.',
        "`clientwise run --set key=value` changes any key. `--preset quick` changes those that the file's table",
        "`[presets.quick]` holds: tables are merged key by key, a part of another name replaces the former one, and a",
        "list of names as `methods` keeps only those, as `--methods FedAvg,AdaFed` does.",
        "",
        "Editors complete and check it: `clientwise schema > clientwise.schema.json`, and as the first line of the",
        "TOML file `#:schema ./clientwise.schema.json`. That is for Taplo, which is behind Even Better TOML in",
        "VS Code, and in Neovim, Helix and Zed; in PyCharm choose the file under JSON Schema Mappings.",
        "`clientwise schema my.toml` knows the parts of that file's plugins as well.",
        "",
    ]
    for title, section in _SECTIONS:
        lines += [
            f"## {title}",
            "",
            inspect.getdoc(section) or "",
            "",
            "| key | type | default | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_field_row(name, field) for name, field in section.model_fields.items()]
        lines.append("")
    lines += ["# Methods by name", "", NAMED, "", "| name | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(about)} |" for name, about in METHODS.items()]
    lines += ["", "# Parts", ""]
    for plural, registry in KINDS.items():
        lines += [f"## {plural}", "", f"{registry.description}.", "", "| name | options | meaning |", "|---|---|---|"]
        for name in registry:
            options = signature(registry, name).removeprefix(name).strip(" ()") or "–"
            by = f" Measured by the {make_criterion(name).measured_by}." if registry is CRITERIA else ""
            lines.append(f"| `{name}` | {_cell(options)} | {_cell(registry.describe(name))}{by} |")
        lines.append("")
    return "\n".join(lines)


def _field_row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else _value(field.default)
    return f"| `{name}` | {_cell(type_name(field.annotation))} | {_cell(default)} | {_cell(field.description or '')} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown())
