"""The kernels of our own against PyTorch's, in double precision.

They run on a GPU; with Triton installed, TRITON_INTERPRET=1 runs those in float32 on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clientwise.engine.stacked import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    kernels.triton is None or (DEVICE == "cpu" and "TRITON_INTERPRET" not in os.environ),
    reason="about GPUs",
)
DTYPES = [torch.float32] + [torch.bfloat16] * (DEVICE == "cuda")


@pytest.fixture(autouse=True)
def rounded() -> Iterator[None]:
    """As in a run with the default precision."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def distance(ours: Tensor, exact: Tensor) -> float:
    """Relative to the length."""
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("count", "inputs", "outputs"),
    [(10, 784, 200), (20, 60, 128), (32, 17, 70), (7, 33, 1), (1, 1, 1), (16, 64, 64)],
)
def test_dense_layers(
    dtype: torch.dtype, has_bias: bool, count: int, inputs: int, outputs: int
) -> None:
    random = torch.Generator(DEVICE).manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=random)

    rows, gradient = draw(3, count, inputs).to(dtype), draw(3, count, outputs).to(dtype)
    weights, bias = draw(5, outputs, inputs), draw(5, outputs) if has_bias else None
    x, g, w = rows.double(), gradient.double(), weights[:3].to(dtype).double()

    expected = torch.bmm(x, w.transpose(1, 2)) + (0 if bias is None else bias[:3, None].double())
    assert distance(kernels.forward(rows, weights, bias), expected) < 0.01
    for wanted in (True, False):
        learnt, shifted = weights.clone(), None if bias is None else bias.clone()
        before = kernels.backward(gradient, rows, learnt, shifted, 0.5, wanted=wanted)
        assert distance((weights - learnt)[:3], 0.5 * torch.bmm(g.transpose(1, 2), x)) < 0.01
        assert torch.equal(learnt[3:], weights[3:]), "models that take no part stay as they are"
        if bias is not None and shifted is not None:
            assert distance((bias - shifted)[:3], 0.5 * g.sum(1)) < 0.001
            assert torch.equal(shifted[3:], bias[3:])
        assert (before is not None) == wanted
        if before is not None:
            assert distance(before, torch.bmm(g, w)) < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_pooling(dtype: torch.dtype, has_bias: bool, relu: bool) -> None:
    random = torch.Generator(DEVICE).manual_seed(1)
    values = torch.randn(3, 2, 6, 8, 5, device=DEVICE, generator=random).to(dtype)
    bias = torch.randn(4, 5, device=DEVICE, generator=random) if has_bias else None
    images = values.double().requires_grad_()
    maxima = functional.max_pool2d(images.permute(0, 1, 4, 2, 3).flatten(0, 1), 2)
    expected = maxima.view(3, 2, 5, 3, 4).permute(0, 1, 3, 4, 2)
    if bias is not None:
        expected = expected + bias[:3, None, None, None].double()
    results, winners = kernels.pool(values, bias, relu=relu)
    assert distance(results, (expected.relu() if relu else expected).detach()) < (
        1e-6 if dtype == torch.float32 else 0.01
    )
    gradient = torch.randn(results.shape, device=DEVICE, generator=random).to(dtype)
    (before,) = torch.autograd.grad(expected, images, gradient.double())
    assert torch.equal(kernels.unpool(gradient, winners).double(), before)


@pytest.mark.skipif(DEVICE == "cpu", reason="about GPUs")
def test_what_others_do_better_is_left_to_them() -> None:
    rows = torch.zeros(2, kernels.MOST_ROWS, 8, device="cuda")
    assert kernels.can_run(rows, 10)
    assert not kernels.can_run(rows.repeat(1, 2, 1), 10)
    assert not kernels.can_run(rows[:1].expand(2, -1, -1), 10)
    long = torch.zeros(2, 8, 2 * kernels.SHORT, device="cuda")
    assert not kernels.can_run(long, 10)
    assert kernels.can_run(long, kernels.MOST_OUTPUTS * kernels.ENOUGH)
    torch.backends.cuda.matmul.allow_tf32 = False
    assert not kernels.can_run(rows, 10)
    assert kernels.can_run(rows.bfloat16(), 10)
    images = torch.zeros(2, 3, 4, 4, 1, device="cuda")
    assert kernels.can_pool(images)
    assert not kernels.can_pool(images[:1].expand(2, -1, -1, -1, -1))
    assert not kernels.can_pool(images[:, :, 1:].contiguous())


@pytest.mark.skipif(DEVICE == "cpu", reason="about GPUs")
def test_a_triton_that_cannot_build_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise PermissionError("no place for what was built")

    monkeypatch.setattr(kernels, "pool", fail)
    kernels.can_build.cache_clear()
    try:
        with pytest.warns(UserWarning, match="slower ones are used: no place for what was built"):
            assert not kernels.can_pool(torch.zeros(2, 3, 4, 4, 1, device="cuda"))
    finally:
        kernels.can_build.cache_clear()
