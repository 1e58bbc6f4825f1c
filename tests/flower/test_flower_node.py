"""A node runs what its operator approved, to the byte.

With real processes: tests/deployment/test_intruders.py.
"""

from __future__ import annotations

import hashlib
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab

from clientwise.errors import ClientwiseError
from clientwise.flower.node import agree, is_agreed

pytestmark = pytest.mark.filterwarnings(
    "ignore:GitWildMatchPattern"
)  # Flower's, where it builds a bundle


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(shutil.copytree(str(files("clientwise") / "template"), tmp_path / "app"))


def bundle(app: Path) -> Fab:
    content = build_fab_from_disk(app)
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def test_an_app_is_agreed_to_by_the_byte(
    app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreed, fab = tmp_path / "agreed", bundle(app)
    assert not is_agreed(fab, agreed)  # nothing is, as long as nobody said so
    assert agree(agreed, app) == fab.hash_str
    assert is_agreed(fab, agreed)
    (app / "data.py").write_text("# a hospital's own, which does not travel\n")
    assert bundle(app) == fab

    changed = bytearray(fab.content)
    changed[len(changed) // 2] ^= 1
    assert not is_agreed(
        Fab(fab.hash_str, bytes(changed), {}), agreed
    )  # whatever the server calls it
    assert not is_agreed(Fab("0" * 64, fab.content, {}), agreed)
    config = app / "federation" / "experiment.toml"
    config.write_bytes(config.read_bytes() + b"\n")
    assert not is_agreed(bundle(app), agreed)
    assert (
        f"REFUSED an app that is not approved by the node's operator: its bundle {bundle(app).hash_str}"
        in caplog.text
    )
    (tmp_path / "app.fab").write_bytes(bundle(app).content)
    agree(agreed, tmp_path / "app.fab")
    assert is_agreed(bundle(app), agreed)

    agreed.write_text(agreed.read_text().splitlines()[1])  # the first is withdrawn
    assert not is_agreed(fab, agreed)


def test_an_app_that_is_not_there_cannot_be_approved(tmp_path: Path) -> None:
    with pytest.raises(ClientwiseError, match="no such app"):
        agree(tmp_path / "agreed", tmp_path / "nowhere")
