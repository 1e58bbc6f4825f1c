"""What can be said in a config, as a JSON schema for editors. It is made from the classes that check a config.

From it, `docs/make_config.py` writes docs/config.md, and parts.json, which has all that `clientwise list` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from ..registry import IMPORTED, Registry
from .config.schema import Experiment
from .config.tables import to_plain
from .config_file import METHODS
from .matrix.grid import MatrixSettings
from .tune import TuneSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Every kind of part: the schema imports all of their registries
KINDS: dict[str, Registry[Any]] = {plural: IMPORTED[plural] for plural in sorted(IMPORTED)}
Schema = Mapping[str, Any]


def config_schema() -> dict[str, Any]:
    """The schema of a config file, with all parts that are registered now."""
    schema = schema_of(Experiment)
    properties = schema["properties"]
    definitions = schema.pop("$defs")
    tables: dict[str, type[BaseModel]] = {"matrix": MatrixSettings, "tune": TuneSettings}
    for key, table in tables.items():
        properties[key] = schema_of(table)
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


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of one table."""
    found: dict[str, Any] = tidy(model.model_json_schema(schema_generator=_Generator))
    return found


def tidy(value: Any) -> Any:
    """The schema without titles, which are the names of the keys again, and with descriptions in one line."""
    if isinstance(value, list):
        return [tidy(item) for item in value]
    if isinstance(value, str):
        return " ".join(value.split()) if "\n" in value else value
    if not isinstance(value, Mapping):
        return value
    has_title = isinstance(value.get("title"), str)
    return {key: tidy(one) for key, one in value.items() if not (has_title and key == "title")}
