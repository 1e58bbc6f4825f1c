"""Commands where the locale is "C": files and the terminal take ASCII only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomli_w

from locales import in_ascii

CONFIG = {
    "name": "ascii",
    "rounds": 2,
    "seeds": [1, 2],  # a mean ± its interval
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": "linear",
    "methods": ["FedAvg", {"name": "prioritised ≻", "criteria": ["dataset_size"]}],
}


COMMANDS = [
    "run config.toml --out run",
    "show run",
    "show run --round 2 --method FedAvg --seed 1",
    "list",
    "check config.toml",
    "check config.toml --data",
    "list --schema",
    "report run",
    "export run --out models",
    "run config.toml --set methods=['≻']",  # an error
]
# In one process, for each would import PyTorch
PROGRAM = """
import sys
from clientwise.cli import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code)
"""


def test_commands_work_where_only_ascii_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(tomli_w.dumps(CONFIG), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS],
        cwd=tmp_path,
        env=in_ascii(),
        capture_output=True,
        encoding="ascii",
    )
    assert done.returncode == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("ended with ")]
    assert ends == ["ended with 0"] * (len(COMMANDS) - 1) + ["ended with 2"], done.stderr
    assert " ? " in done.stdout
    assert done.stderr.splitlines()[-1].startswith("error: ")
    table = tmp_path / "run" / "report" / "tables" / "summary.csv"
    for path in (table, tmp_path / "run" / "config.toml"):  # files are UTF-8 all the same
        assert "prioritised ≻" in path.read_text(encoding="utf-8")
