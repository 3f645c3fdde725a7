"""The fused normalisation agrees with PyTorch's, and is left alone where it does not fit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slomofast.core import fused
from slomofast.core.norms import TestTimeNorm, norm_relu


@pytest.mark.parametrize("rows", [1, 7, 128, 12_800, 204_800])
@pytest.mark.parametrize("channels", [3, 16, 70, 160, 320, 640])
def test_layout_covers_every_value(rows: int, channels: int) -> None:
    width, tile, parts = fused.layout(rows, channels)
    assert width * tile == fused.TILE and 1 <= parts <= fused.PARTS
    assert parts & (parts - 1) == 0  # Triton wants powers of two
    assert width * -(-channels // width) >= channels


def test_a_cpu_batch_keeps_to_pytorch() -> None:
    x = torch.randn(4, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    with fused.kernels_on():
        assert not fused.suits(x, torch.ones(8), torch.zeros(8))


@pytest.mark.parametrize("statistics", ["batch", "source", "blend", "ema", "robust"])
def test_relu_behind_the_norm(statistics: str) -> None:
    torch.manual_seed(0)
    layer = TestTimeNorm(nn.BatchNorm2d(8), statistics)  # type: ignore[arg-type]
    x = torch.randn(4, 8, 3, 3)
    torch.testing.assert_close(norm_relu(layer, x), F.relu(layer(x)))
    other = nn.GroupNorm(2, 8)
    torch.testing.assert_close(norm_relu(other, x), F.relu(other(x)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (200, 160, 32, 32), (4, 24, 6, 6), (2, 70, 3, 3), (64, 640, 8, 8)])
def test_kernels_agree_with_pytorch(shape: tuple[int, ...], dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(0)
    x = (2 * torch.randn(shape, device="cuda") + 3).to(dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(2, shape[1], device="cuda")
    slope = torch.randn_like(x)
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    assert not fused.suits(inputs[0], inputs[1], inputs[2])  # with gradient only in recorded passes
    with torch.no_grad():
        assert fused.suits(inputs[0], inputs[1], inputs[2]) == (x.numel() >= fused.LARGE)
    with fused.kernels_on():
        assert fused.suits(inputs[0], inputs[1], inputs[2])
    ours = fused.batch_norm(inputs[0], inputs[1], inputs[2], 1e-5, relu)
    wanted = F.batch_norm(exact[0], None, None, exact[1], exact[2], True, 0.0, 1e-5)
    wanted = F.relu(wanted) if relu else wanted
    assert ours.dtype == dtype and ours.is_contiguous(memory_format=torch.channels_last)
    bound = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(ours.double(), wanted, rtol=bound, atol=bound)
    mine = torch.autograd.grad(ours, inputs, slope)
    right = torch.autograd.grad(wanted, exact, slope.double())
    for got, expected in zip(mine, right, strict=True):
        scale = float(expected.abs().max())
        assert float((got.double() - expected).abs().max()) <= bound * scale
    again = fused.batch_norm(inputs[0], inputs[1], inputs[2], 1e-5, relu)
    assert torch.equal(ours, again)  # equal bits
