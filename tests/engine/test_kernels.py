"""The kernels of our own against PyTorch's, in double precision; they run on a GPU only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from clientwise.engine import kernels

pytestmark = pytest.mark.skipif(kernels.triton is None or not torch.cuda.is_available(), reason="about GPUs")


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("count", "inputs", "outputs"), [(10, 784, 200), (20, 60, 128), (32, 17, 70), (7, 33, 1), (1, 1, 1), (16, 64, 64)]
)
def test_dense_layers(dtype: torch.dtype, has_bias: bool, count: int, inputs: int, outputs: int) -> None:
    random = torch.Generator("cuda").manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=random)

    rows, gradient = draw(3, count, inputs).to(dtype), draw(3, count, outputs).to(dtype)
    weights, bias = draw(5, outputs, inputs), draw(5, outputs) if has_bias else None
    assert kernels.takes_dense(rows)
    x, g, w = rows.double(), gradient.double(), weights[:3].to(dtype).double()

    expected = torch.bmm(x, w.transpose(1, 2)) + (0 if bias is None else bias[:3, None].double())
    assert distance(kernels.dense(rows, weights, bias), expected) < 0.01
    for wanted in (True, False):
        learnt, shifted = weights.clone(), None if bias is None else bias.clone()
        before = kernels.learn_dense(gradient, rows, learnt, shifted, 0.5, wanted=wanted)
        assert distance((weights - learnt)[:3], 0.5 * torch.bmm(g.transpose(1, 2), x)) < 0.01
        assert torch.equal(learnt[3:], weights[3:]), "models that take no part stay as they are"
        if bias is not None and shifted is not None:
            assert distance((bias - shifted)[:3], 0.5 * g.sum(1)) < 0.001
            assert torch.equal(shifted[3:], bias[3:])
        assert (before is not None) == wanted
        if before is not None:
            assert distance(before, torch.bmm(g, w)) < 0.01


def test_what_others_do_better_is_left_to_them() -> None:
    rows = torch.zeros(2, kernels.MOST_ROWS, 8, device="cuda")
    assert kernels.takes_dense(rows)
    assert not kernels.takes_dense(rows.repeat(1, 2, 1))
    assert not kernels.takes_dense(rows[:1].expand(2, -1, -1))
    torch.backends.cuda.matmul.allow_tf32 = False
    assert not kernels.takes_dense(rows)
    assert kernels.takes_dense(rows.bfloat16())
