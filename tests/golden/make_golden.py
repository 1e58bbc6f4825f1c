"""Write the golden files anew: `python tests/golden/make_golden.py`, or with names of runs, these only."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from golden_runs import FOLDER, MATRIX, RUNS, write_matrix, write_run


def main(names: list[str]) -> None:
    """Run what is named, by default everything."""
    for name in names or [*RUNS, MATRIX["name"]]:
        with tempfile.TemporaryDirectory() as out:
            if name == MATRIX["name"]:
                write_matrix(Path(out) / "run", FOLDER / name)
            else:
                write_run(name, Path(out) / "run", FOLDER / name)
        print(FOLDER / name)


if __name__ == "__main__":
    main(sys.argv[1:])
