"""A node installs and approves only what was signed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from importlib.resources import as_file, files
from pathlib import Path

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import require
from test_lock import wheel
from test_scripts import App

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # `make test-deploy` runs them


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> App:
    """The folder in which a release was signed."""
    require(["openssl", "ssh-keygen"])
    folder = tmp_path_factory.mktemp("office")
    one = App(folder / "app")
    use_these_sources(one)
    with as_file(files("clientwise") / "hosts" / "deployment" / "template") as template:
        shutil.copytree(template, one.folder, dirs_exist_ok=True)
    assert one.script("certificates.sh").returncode == 0
    ours = wheel(folder, "clientwise", "0.1.0")
    assert "run deploy/lock.py first" in one.script("sign.sh", ours).stdout
    (one.folder / "deploy" / "requirements.lock").write_text("")
    deep = one.folder / ".venv" / "lib/python/site-packages/torch/a/b/c/d/e/f/g"
    deep.mkdir(parents=True)  # deeper than Flower accepts in an app
    (deep / "linear.py").write_text("")
    signed = one.script("sign.sh", ours)
    assert signed.returncode == 0, signed.stderr
    (one.folder / "told").write_text(signed.stdout.split()[-1])  # by telephone
    return one


@pytest.fixture
def node(office: App, tmp_path: Path) -> App:
    """A member's folder with the release and the key that signed it."""
    member = App(tmp_path / "member")
    use_these_sources(member)
    kept = shutil.ignore_patterns("state", ".venv")
    shutil.copytree(office.folder, member.folder, dirs_exist_ok=True, ignore=kept)
    member.state.mkdir()
    shutil.copy(office.state / "certificates" / "release.pub", member.state)
    return member


def use_these_sources(app: App) -> None:
    sources = os.environ.get("PYTHONPATH", "")
    app.program("python", f'PYTHONPATH="{sources}" exec {sys.executable} "$@"')


def own_data(node: App) -> tuple[str, Path]:
    """The arguments of agree.sh: the node's name and its data."""
    path = node.folder / "own.npz"
    chance = numpy.random.default_rng(1)
    arrays: dict[str, object] = {}
    for part in ("train", "test"):
        arrays[f"{part}_inputs"] = chance.random((50, 1, 8, 8), "float32")
        arrays[f"{part}_targets"] = numpy.arange(50) % 10
    numpy.savez(path, **arrays)
    return "ward-a", path


def test_a_signed_release_is_approved(node: App) -> None:
    done = node.script("agree.sh", *own_data(node))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (node.folder / "deploy" / "bundle").read_text().strip() in done.stdout
    assert (node.folder / "told").read_text() in done.stdout
    assert (node.state / "nodes" / "ward-a" / "ledger.jsonl").exists()
    for name in ("bundle", "release", "release.sig", "clientwise-0.1.0-py3-none-any.whl"):
        mode = (node.folder / "deploy" / name).stat().st_mode  # root unpacks, the node's user reads
        assert mode & stat.S_IROTH, name


@pytest.mark.parametrize(
    "changed",
    [
        "federation/experiment.toml",
        "deploy/requirements.lock",
        "deploy/clientwise-0.1.0-py3-none-any.whl",
        "deploy/supernode.sh",
        "deploy/bundle",
        "deploy/release",
        "LICENSE",
        "pyproject.toml",
    ],
)
def test_one_changed_byte_is_refused(node: App, changed: str) -> None:
    file = node.folder / changed
    file.write_bytes(file.read_bytes() + b"\n")
    for script in ("verify.sh", "install.sh", "agree.sh"):
        refused = node.script(script, *(own_data(node) if script == "agree.sh" else ()))
        assert refused.returncode == 1
        assert "REFUSED" in refused.stdout
    assert not (node.state / "nodes").exists()


def test_what_was_not_signed_is_refused(node: App, tmp_path: Path) -> None:
    for name in ("federation/more.py", "deploy/clientwise-0.1.0-1-py3-none-any.whl"):
        added = node.folder / name
        added.write_text("")
        for script, options in (("install.sh", ()), ("agree.sh", own_data(node))):
            assert (
                f"REFUSED: not in the signed list: {name}" in node.script(script, *options).stdout
            )
        added.unlink()
    other = App(tmp_path / "other")
    assert other.script("certificates.sh").returncode == 0
    shutil.copy(other.state / "certificates" / "release.pub", node.state)
    refused = node.script("agree.sh", *own_data(node))
    assert refused.returncode == 1
    assert "REFUSED: deploy/release is not signed with" in refused.stdout
    assert not (node.state / "nodes").exists()


def test_what_is_signed_is_installed(node: App) -> None:
    shutil.rmtree(node.folder / ".venv")
    done = node.script("install.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(node.folder.glob(".venv/lib/*/site-packages/clientwise.py"))
