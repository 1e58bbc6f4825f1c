"""B2: what systemd runs, as whom, with which secrets; nothing of ours is root's."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "units").glob("*.service"))
SECRETS = {
    "clientwise-node": {"identity", "runtime"},
    "clientwise-server": {"identity", "runtime"},
    "flower-supernode": {"runtime"},
    "flower-superlink": {"runtime"},
}


def settings(unit: Path) -> list[tuple[str, str]]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line]
    return [tuple(line.split("=", 1)) for line in lines]  # type: ignore[misc]


def test_there_are_four_units() -> None:
    assert {unit.stem for unit in UNITS} == set(SECRETS)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_no_privileges_and_its_own_secrets_alone(unit: Path) -> None:
    found = settings(unit)
    one = dict(found)
    assert one["DynamicUser"] == "yes"
    assert one["User"] == unit.stem
    assert one["ProtectSystem"] == "strict"
    assert one["CapabilityBoundingSet"] == ""
    assert one["IPAddressDeny"] == "any"
    assert one["ExecStart"].startswith("/opt/clientwise/current/bin/")
    loaded = {value.split(":")[0] for name, value in found if name == "LoadCredential"}
    assert loaded == SECRETS[unit.stem]
    names = [name for name, _ in found]
    assert not {"ExecStartPre", "ExecStartPost", "PermissionsStartOnly"} & set(names)
    assert not [value for name, value in found if name.startswith("Exec") and value[:1] in "+!-@:"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_exposure_of_a_unit_is_at_most_2(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]


def test_nothing_of_ours_changes_owners_or_runs_a_shell() -> None:
    forbidden = {"chown", "lchown", "fchown", "setuid", "setgid", "system", "popen", "eval", "exec"}
    forbidden |= {"import_module", "__import__", "unpack_archive", "extractall"}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert name not in forbidden, f"{path.name}, line {node.lineno}: {name}"
                shell = [word for word in node.keywords if word.arg == "shell"]
                assert not shell, f"{path.name}, line {node.lineno}: shell"
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not {"pickle", "marshal", "shelve", "tarfile", "zipfile"} & imported
    assert not list(ROOT.rglob("*.sh"))


def test_random_numbers_are_the_operating_systems() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "random" not in {alias.name for alias in node.names}, path.name


def test_only_one_file_knows_flowers_private_names() -> None:
    public = ("flwr.app", "flwr.serverapp", "flwr.clientapp")
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if module.startswith("flwr") and module not in public:
                assert path.name == "mailbox.py", f"{path.name} imports {module}"


def test_new_writes_files_that_can_be_approved(tmp_path: Path) -> None:
    from clientwise_consortium.approval import Experiment
    from clientwise_consortium.command import main
    from clientwise_consortium.keys import read_signers

    for role in ("site", "coordinator"):
        assert main(["new", role, str(tmp_path / role)]) == 0
    site = tmp_path / "site"
    assert Experiment.read((site / "experiment.toml").read_bytes()).mu
    assert read_signers(site / "signers") == []
    assert {path.name for path in site.glob("*.service")} == {
        "clientwise-node.service",
        "flower-supernode.service",
    }
    (site / "lock").write_text("a==1")
    arguments = ["agree", str(site / "experiment.toml"), "--site", "north", "--reason", "a test"]
    arguments += ["--lock", str(site / "lock"), "--out", str(site / "approval.toml")]
    assert main(arguments) == 0


@pytest.mark.parametrize("name", ["guide", "security"])
def test_who_signs_can_read_the_page_in_minutes(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) <= 900
