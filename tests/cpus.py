"""Run the tests marked `bits` as on older CPUs, with one thread and with four.

    python tests/cpus.py [OPTIONS OF PYTEST]

The settings take instructions away from PyTorch, oneDNN, MKL, OpenBLAS and NumPy. Libraries ignore
settings for CPUs of another kind. `make test` runs the tests with all instructions, and four threads.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

QUICK_BITS = "bits and not (slow or flower or experiments or fire)"
OLDEST = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "ARMV8" if platform.machine() in ("aarch64", "arm64") else "Nehalem",
    # NumPy warns of a feature that this machine lacks.
    "NPY_DISABLE_CPU_FEATURES": " ".join(
        name for name in __cpu_dispatch__ if __cpu_features__[name]
    ),
}
# MKL would take no more threads than there are cores
FOUR_THREADS = {"OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE"}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2,STRICT",  # else sums depend on where arrays lie in memory (docs/performance.md)
    "OPENBLAS_CORETYPE": "Haswell",
}


def settings(capability: str) -> list[dict[str, str]]:
    """The environment of each run on a machine of which PyTorch reports this capability."""
    found = [OLDEST | {"OMP_NUM_THREADS": "1"}]
    if capability.startswith("AVX"):  # without AVX2, PyTorch would stop with an illegal instruction
        found.append(AVX2 | FOUR_THREADS)
    return found


def main(options: list[str]) -> int:
    """Run the tests once for each setting, up to the first that fails."""
    tests = Path(__file__).parent
    files = sorted(
        file for file in tests.rglob("test_*.py") if "mark.bits" in file.read_text("utf-8")
    )
    for setting in settings(torch.backends.cpu.get_cpu_capability()):
        print(*(f"{name}={value!r}" for name, value in setting.items()), flush=True)
        command = [sys.executable, "-m", "pytest", "-m", QUICK_BITS, *options, *files]
        done = subprocess.run(command, env=os.environ | setting, check=False)
        if done.returncode != pytest.ExitCode.OK:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
