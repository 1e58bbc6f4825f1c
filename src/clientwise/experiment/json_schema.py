"""The config as a JSON schema for editors, made from the classes that check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from .config.named import METHODS
from .config.schema import Experiment
from .config.tables import to_plain
from .matrix.grid import MatrixSettings
from .tune import TuneSettings

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
