"""The recorded config: what it says, and that no content of it executes or breaks anything."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from clientwise.core.sampling import ByScore
from clientwise.core.weights.bounds import Bounds
from clientwise.experiment.config.named import METHODS
from clientwise.experiment.config.tables import to_plain
from clientwise.experiment.load import load_experiment
from clientwise.experiment.reference import KINDS
from clientwise.record import known_parts
from clientwise.record.files import CONFIG
from clientwise.record.known_parts import known_part
from clientwise.record.reading.config_view import RecordedConfig, recorded_config
from clientwise.record.toml_text import read_table
from clientwise.registry import Part

WHOLE: dict[str, Any] = {
    "note": "before the change",
    "tags": ["thesis"],
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 3},
    "model": "linear",
    "training": {"learning_rate": 0.1},
    "federation": {"clients_per_round": 2, "fraction": 0.5},
    "server_set": {"source": "held_out"},
    "flower": {"clients": []},
    "devices": {"speed": {"name": "lognormal", "median": 1.0}, "traces": "devices.csv"},
    "attributes": {"job": ["nurse", "cook", "cook"], "broken": 3},
    "methods": [
        {
            "name": "A",
            "criteria": [{"name": "dataset_size", "as": "size"}, {"name": "label_diversity"}],
            "score": {"name": "prioritized"},
            "normalise": {"name": "max"},
            "evidence": {"name": "significance", "threshold": 2},
            "bounds": {"cap": 0.2},
            "before": [{"name": "clip", "times": 1.0}],
            "rule": {"name": "median"},
        },
        {"name": "B", "criteria": [{"name": "dataset_size"}], "rule": {"name": "mean"}},
    ],
}


def test_a_config_as_typed_values() -> None:
    config = RecordedConfig(WHOLE)
    assert (config.note, config.tags) == ("before the change", ["thesis"])
    assert (config.data, config.partition) == (Part("digits", {}), Part("iid", {"clients": 3}))
    assert (config.model, config.features) == (Part("linear", {}), None)
    assert (config.clients_per_round, config.fraction) == (2, 0.5)
    assert (config.server_set_source, config.is_deployment) == ("held_out", False)
    assert config.devices == {"speed": Part("lognormal", {"median": 1.0}), "traces": "devices.csv"}
    assert config.attributes == {"job": ["nurse", "cook", "cook"], "broken": []}
    assert (config.leaves_out("data"), config.leaves_out("features")) == (False, True)
    method = config.method("A")
    assert method is not None
    assert [criterion.called for criterion in method.criteria] == ["size", "label_diversity"]
    assert method.normaliser == Part("max", {})
    assert (method.threshold, method.bounds) == (2.0, Bounds(cap=0.2))
    assert (method.before, method.has_rule) == ((Part("clip", {"times": 1.0}),), True)
    other = config.method("B")
    assert other is not None
    assert (other.score, other.bounds, other.threshold, other.has_rule) == (None, None, inf, False)
    assert config.method("C") is None


def test_both_models_of_the_config_agree(tiny: dict[str, Any]) -> None:
    """That of `experiment.config`, and the one that raises no errors and imports no plugins."""
    bounds = {"cap": 0.8, "floor": 0.01}
    more: dict[str, Any] = {
        "note": "why",
        "tags": ["a", "b"],
        "federation": {"clients_per_round": 3, "sampling": "fixed"},
        "methods": [*METHODS, {"name": "mine", "like": "Recommended", "bounds": bounds}],
        "devices": {"speed": {"name": "lognormal", "median": 2.0}},
        "attributes": {"job": ["nurse"] * 6, "age": [30, 41.5, 52, 63, 74, 85]},
    }
    written = load_experiment(tiny | more)
    read = RecordedConfig(written.to_dict())
    assert len(written.methods) > 20
    keys = ("data", "features", "partition", "model", "training", "devices", "note", "tags")
    for key in (*keys, "attributes"):
        plain = to_plain(getattr(read, key))
        assert plain == to_plain(getattr(written, key)), key
    federation = written.federation
    assert read.clients_per_round == federation.clients_per_round == 3
    assert (read.fraction, read.sampling) == (federation.fraction, federation.sampling)
    assert read.server_set_source == written.server_set.source
    assert [one.name for one in read.methods] == [one.name for one in written.methods]
    for one, other in zip(read.methods, written.methods, strict=True):
        for key in ("criteria", "score", "evidence", "bounds", "before", "rule", "control"):
            assert to_plain(getattr(one, key)) == to_plain(getattr(other, key)), key
        assert to_plain(one.normaliser) == to_plain(other.normalise)
        assert (one.fine_tunes, one.is_secret) == (
            other.fine_tune is not None,
            other.secure_aggregation is not None,
        )
        assert one.privacy == (to_plain(other.privacy) or {})
        assert one.tuned == (to_plain(other.tuned) or {})


@pytest.mark.parametrize(
    ("changed", "is_control"),
    [
        ({}, False),
        ({"control": "pooled"}, True),
        ({"rule": {"name": "oracle"}}, False),  # no such rule: nothing is known about it
        ({"criteria": [{"name": "honest"}]}, True),
    ],
)
def test_which_methods_are_references_only(changed: dict[str, Any], is_control: bool) -> None:
    method = RecordedConfig({"methods": [WHOLE["methods"][1] | changed]}).method("B")
    assert method is not None
    assert method.is_control == is_control


@pytest.mark.parametrize("options", [{}, {"average": "uniform"}, {"average": "score"}])
def test_whether_drawn_clients_have_equal_weights(options: dict[str, Any]) -> None:
    table = {"name": "A", "sampling": {"name": "by_score", **options}}
    method = RecordedConfig({"methods": [table]}).method("A")
    assert method is not None
    assert method.averages_equally == ByScore(**options).averages_equally


def test_parts_are_known_alike_with_and_without_their_code() -> None:
    """This process has imported all of them; a report has not."""
    written = known_parts._written()
    assert {kind for kind, _ in written} == KINDS.keys()
    for (kind, name), part in written.items():
        assert known_part(kind, name) == part


ODD: list[Any] = [3, "text", [], {}, [[]], [{}]]
ODD += [[{"name": 3}], {"name": []}, {"name": "x", "as": 1}, True]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_values_of_another_shape_are_unknown(odd: Any) -> None:
    changed = [{"methods": [WHOLE["methods"][0] | {key: odd}]} for key in WHOLE["methods"][0]]
    for table in [*({key: odd} for key in WHOLE), *changed]:
        config = RecordedConfig(table)
        assert isinstance(config.note, str)
        assert all(isinstance(tag, str) for tag in config.tags)
        assert config.is_known
        assert not config.is_deployment
        config.flat()
        for part in (config.data, config.features, config.partition, config.model):
            assert part is None or isinstance(part.name, str)
        assert isinstance(config.training, dict)
        assert isinstance(config.devices, dict)
        assert (config.clients_per_round, config.fraction) == (None, None)
        for method in config.methods:
            assert (method.is_control, method.threshold >= 0) == (method.control is not None, True)
            assert isinstance(method.has_rule, bool)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff[",
        b"not toml [",
        b"x = " + b"[" * 50_000,
        b"x = " + b"[" * 40 + b"]" * 40,
        f"x = {'9' * 5_000}".encode(),
        b"x = 9223372036854775808",
        b"a." * 9_999 + b"a = 1",
        b"#" * (2**20 + 1),
    ],
    ids=range(9),
)
def test_a_file_that_cannot_be_read_is_an_empty_config(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(content)
    assert recorded_config(tmp_path) == RecordedConfig({})
    assert not recorded_config(tmp_path).is_known


def test_what_is_no_file_is_an_empty_config(tmp_path: Path) -> None:
    assert recorded_config(tmp_path / "nowhere") == RecordedConfig({})
    os.mkfifo(tmp_path / CONFIG)  # reading one would wait forever
    assert recorded_config(tmp_path) == RecordedConfig({})
    (tmp_path / "folder" / CONFIG).mkdir(parents=True)
    assert read_table(tmp_path / "folder" / CONFIG) == {}


def test_a_config_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / CONFIG
    path.write_text(tomli_w.dumps(WHOLE))
    first = recorded_config(tmp_path)
    assert first == RecordedConfig(WHOLE)
    assert recorded_config(tmp_path) is first
    path.write_text(tomli_w.dumps(WHOLE | {"note": "after it"}))
    os.utime(path, ns=(1, 1))
    assert recorded_config(tmp_path).note == "after it"


def test_reading_imports_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "harm.py").write_text("raise SystemExit('executed')")
    plugin = {"plugins": ["harm"], "plugin_dir": str(tmp_path), "model": "harm.Network"}
    (tmp_path / CONFIG).write_text(tomli_w.dumps(WHOLE | plugin))
    config = recorded_config(tmp_path)
    assert (config.model, config.methods[0].name) == (Part("harm.Network", {}), "A")
