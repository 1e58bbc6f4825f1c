"""The config as a JSON schema, made from the classes that check it: editors complete and check TOML files by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from .matrix import MatrixSettings
from .named import METHODS
from .schema import Experiment
from .tables import to_plain


class _Generator(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Defaults as one writes them in TOML."""
        return to_plain(dft)


def config_schema() -> dict[str, Any]:
    """The schema of a config file, with all parts that are registered now."""
    schema, matrix = _schema_of(Experiment), _schema_of(MatrixSettings)
    definitions = {**schema.pop("$defs", {}), **matrix.pop("$defs", {})}
    hostile, own = definitions["HostileClients"]["properties"], {"$ref": "#/$defs/MethodSettings"}
    names = {"enum": list(METHODS), "description": "a method that has a name: `clientwise list methods`"}
    schema["properties"]["methods"]["items"] = {"anyOf": [names, own, _changed_method(definitions["MethodSettings"])]}
    hostile["attack"] = {"anyOf": [hostile["attack"]["items"], hostile["attack"]]}
    changes = {"type": "object", "description": "what is different with --preset"}
    schema["properties"] |= {"matrix": matrix, "presets": {"type": "object", "additionalProperties": changes}}
    schema.pop("required")  # a preset, or --set, may give what is missing
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An experiment of clientwise"}
    return {**head, **{key: value for key, value in schema.items() if key != "title"}, "$defs": definitions}


def _changed_method(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method with `like`: what it says of a part is merged with what the other says, and may be without a name."""
    known = dict.fromkeys(method["properties"], True)
    like = {"enum": list(METHODS), "description": "the method by name that this one changes"}
    return {
        "type": "object",
        "properties": {**known, "like": like},
        "required": ["like"],
        "additionalProperties": False,
    }


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = _without_titles(model.model_json_schema(schema_generator=_Generator))
    return found


def _without_titles(value: Any) -> Any:
    """Pydantic calls every key by its name again."""
    if isinstance(value, Mapping):
        named = isinstance(value.get("title"), str)
        return {key: _without_titles(item) for key, item in value.items() if not (named and key == "title")}
    return [_without_titles(item) for item in value] if isinstance(value, list) else value
