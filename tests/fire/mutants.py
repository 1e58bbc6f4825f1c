"""Configs that were changed at random: the same ones for the same number."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from clientwise.experiment.config.methods import MethodSettings
from clientwise.experiment.config.schema import Experiment
from clientwise.experiment.config.tables import ConfigTable
from clientwise.experiment.reference import KINDS

ROOT = Path(__file__).parents[2]
SHIPPED = [
    ROOT / "src/clientwise/demo.toml",
    *sorted((ROOT / "examples").glob("*.toml")),
    *sorted((ROOT / "lab").glob("*/*.toml")),
]
SCALARS = [
    "-1",
    "0",
    "1",
    "2",
    "7",
    "100",
    "2000",
    "10_000",
    "100_000",
    "1_000_000",
    "50_000_000",
    "1_000_000_000",
    "4_294_967_296",
    "-0.0",
    "0.5",
    "1.0",
    "1e-300",
    "5e-324",
    "1e30",
    "1e300",
    "1e308",
    "1e999",
    "-1e308",
    "nan",
    "inf",
    "-inf",
    "true",
    "false",
    "0xffff_ffff_ffff_ffff_ffff",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "[]",
    "[[]]",
    "{}",
    '[1,"a"]',
    "[0]",
    "[-1]",
    "[nan]",
    "[1,1]",
    "[[1]]",
    "[true]",
    '{name="x"}',
    "{name=1}",
    "{name=[]}",
    "{a.b.c.d=1}",
    '""',
    '"',
    '"',
    '"."',
    '"\\u0000"',
    '"²"',
    '"ſ"',
    '"\\u202e"',
    '"é"',
    '"e\\u0301"',
    '"💥"',
    '"[/]"',
    '"cuda:99999999999"',
    '"cuda:1"',
    '"cuda:²"',
    '"cpu"',
    '"full"',
    '"ray"',
    '"auto"',
    '"/dev/zero"',
    '"/proc/self/mem"',
    '"../.."',
    '"~"',
    '"nan"',
    '"1"',
    '"flower"',
    '"clients"',
    '"contributed"',
    '"server"',
    '"digits"',
    '"diabetes"',
    '"x.y"',
    '"$HOME"',
    '"%s"',
    '"{}"',
    '["digits","digits"]',
]
LARGE = [
    *(
        str(value)
        for value in (10**30, -(10**30), 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64)
    ),
    "9" * 5_000,
    "1" + "0" * 100_000,
    "[1" + ",1" * 50_000 + "]",
    "[" + ",".join(map(str, range(3_000))) + "]",
    "[" + str(10**30) + "]",
    "[" + "1000000," * 20 + "]",
    '"' + "x" * 300 + '"',
    '"' + "x" * 100_000 + '"',
    '"' + "../" * 2_000 + '"',
    '["' + "y" * 300 + '"]',
    "[" * 50 + "]" * 50,
    "[" * 50_000 + "]" * 50_000,
    "{a=" * 500 + "1" + "}" * 500,
    "{" + "a." * 10_000 + "a=1}",
]
BYTES = [
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    "\u202e".encode(),
    b"[" * 3_000,
    b"=",
    b"#",
    b'"""',
    b"\r",
    b".",
]


def mutants(first: int, count: int) -> Iterator[bytes]:
    """So many changed configs, from this number on."""
    texts = [path.read_text(encoding="utf-8") for path in SHIPPED]
    for number in range(first, first + count):
        yield _mutant(random.Random(number), texts)


def _mutant(draw: random.Random, texts: list[str]) -> bytes:
    text = draw.choice(texts)
    if draw.random() < 0.15:
        return _spoilt_text(draw, text)
    table, given = tomllib.loads(text), _Snippets(draw)
    if draw.random() < 0.6:  # data that are there, so that more is tried than to read the config
        table |= {"data": draw.choice(("digits", "digits", "mnist5k", "diabetes")), "plugins": []}
        table.pop("features", None)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        draw.choice(_CHANGES)(draw, table, given)
    return given.written(tomli_w.dumps(table)).encode()


class _Snippets:
    """Values that only exist as TOML: each has a placeholder until the table is written."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._texts = draw, list[str]()

    def value(self) -> str:
        """A placeholder for a value that is seldom right."""
        self._texts.append(self._draw.choice(LARGE if self._draw.random() < 0.35 else SCALARS))
        return f"@@{len(self._texts) - 1}@@"

    def written(self, text: str) -> str:
        """The text with the values in it."""
        return re.sub(r'"@@(\d+)@@"', lambda found: self._texts[int(found[1])], text)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a table."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _replace(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    node, key = draw.choice(list(_places(table)))
    node[key] = given.value()


def _delete(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    node, key = draw.choice(list(_places(table)))
    del node[key]
    table.setdefault("name", "x")


def _rename(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    node, key = draw.choice([place for place in _places(table) if isinstance(place[0], dict)])
    node[draw.choice([key[:-1], key.upper(), f"{key}²", "name", "as", "x" * 400, "", "a.b"])] = (
        node.pop(key)
    )


def _swap(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    (one, first), (other, second) = draw.choices(list(_places(table)), k=2)
    one[first], other[second] = _copy(other[second]), _copy(one[first])


def _repeat(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    lists = [node[key] for node, key in _places(table) if isinstance(node[key], list) and node[key]]
    if lists:
        chosen = draw.choice(lists)
        chosen += [_copy(draw.choice(chosen)) for _ in range(draw.choice((1, 3, 300)))]


def _part(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    """Another part, with options of its own that may be anything."""
    kinds = {
        "data": "datasets",
        "partition": "partitions",
        "model": "models",
        "features": "features",
    }
    own = {
        "criteria": "criteria",
        "score": "scores",
        "normalise": "normalisers",
        "adjust": "adjustments",
    }
    own |= {"adapt_loss": "adapt_loss", "server_step": "server_steps", "attack": "attacks"}
    own |= {"evidence": "evidence", "before": "before", "rule": "rules"}
    key = draw.choice([*kinds, *own])
    registry = next(
        registry for name, registry in KINDS.items() if name.startswith(({**kinds, **own}[key])[:6])
    )
    name = draw.choice(list(registry))
    part: dict[str, Any] = {"name": name}
    for option in registry.options(name):
        if option.required and draw.random() < 0.8:
            part[option.name] = 5
        if draw.random() < 0.5:
            part[option.name] = given.value()
    if key in kinds:
        table[key] = part
    elif key == "attack":
        table["hostile"] = [{"clients": 1, "attack": part}]
    else:
        methods = table.get("methods")
        method = draw.choice(methods) if isinstance(methods, list) and methods else {}
        if isinstance(method, dict):
            method[key] = [part] if key in ("criteria", "before") else part


def _add(draw: random.Random, table: dict[str, Any], given: _Snippets) -> None:
    """A key there is, with a value that may be anything."""
    node, kind = table, Experiment
    if draw.random() < 0.3 and isinstance(table.get("methods"), list) and table["methods"]:
        node, kind = draw.choice(table["methods"]), MethodSettings
    for _ in range(3):
        key, field = draw.choice(list(kind.model_fields.items()))
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, ConfigTable):
            node, kind = node.setdefault(key, {}) if isinstance(node, dict) else {}, inner
            continue
        break
    if isinstance(node, dict):
        node[key] = given.value()


_CHANGES = [
    _replace,
    _replace,
    _replace,
    _part,
    _part,
    _add,
    _add,
    _delete,
    _rename,
    _swap,
    _repeat,
]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _spoilt_text(draw: random.Random, text: str) -> bytes:
    """Lines doubled, dropped, exchanged, or bytes that do not belong there."""
    lines = text.splitlines()
    for _ in range(draw.choice((1, 2, 5))):
        one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.randrange(4):
            case 0:
                lines.insert(one, lines[other])
            case 1:
                del lines[one]
            case 2:
                lines[one], lines[other] = lines[other], lines[one]
            case _:
                content = "\n".join(lines).encode()
                at = draw.randrange(len(content))
                return content[:at] + draw.choice(BYTES) + content[at:]
    return "\n".join(lines).encode()
