"""Settings of CPUs and threads reach the tests that `tests/cpus.py` runs under them."""

from __future__ import annotations

import os

import pytest
import torch
from numpy._core._multiarray_umath import __cpu_features__

import cpus


def test_a_machine_is_only_limited_to_what_it_has() -> None:
    def limits(capability: str) -> list[tuple[str | None, str]]:
        return [
            (setting.get("ATEN_CPU_CAPABILITY"), setting["OMP_NUM_THREADS"])
            for setting in cpus.settings(capability)
        ]

    oldest = ("default", "1")
    assert limits("DEFAULT") == limits("SVE256") == [oldest]
    assert limits("AVX2") == limits("AVX512") == [oldest, ("avx2", "4")]


@pytest.mark.bits
def test_settings_of_the_environment_hold_in_this_process() -> None:
    capability = os.environ.get("ATEN_CPU_CAPABILITY")
    if capability:
        assert torch.backends.cpu.get_cpu_capability() == capability.upper()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        assert torch.get_num_threads() == int(threads)
    for feature in os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split():
        assert not __cpu_features__[feature]
