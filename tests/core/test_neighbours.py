"""BatchNorm with statistics gathered by image: equal weights are BatchNorm, others what the formula says."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core import fused
from slomofast.core.neighbours import MOST_SIZES, Neighbours, neighbour_norm
from slomofast.core.norms import TestTimeNorm, set_statistics, share_neighbours


def rows_of(images: int, device: str = "cpu") -> Tensor:
    rows = torch.rand(images, images, device=device) ** 3 + 1e-3
    return rows / rows.sum(1, keepdim=True)


def by_formula(x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each image with the mean and variance of the whole batch, weighted by its row."""
    out = []
    for image, row in zip(x, rows, strict=True):
        mean = (row[:, None] * x.mean((2, 3))).sum(0)
        second = (row[:, None] * x.square().mean((2, 3))).sum(0)
        gain = weight / (second - mean.square() + 1e-5).sqrt()
        out.append((image - mean[:, None, None]) * gain[:, None, None] + bias[:, None, None])
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (2, 3, 1, 2), (9, 16, 8, 8)])
def test_values_and_gradients_are_those_of_the_formula(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, rows = 2 * torch.randn(shape) + 3, rows_of(shape[0])
    weight, bias = torch.randn(2, shape[1])
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    wanted = by_formula(exact[0], rows.double(), exact[1], exact[2])
    found = neighbour_norm(ours[0], rows, ours[1], ours[2], 1e-5)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    slope = torch.randn(shape)
    pairs = zip(
        torch.autograd.grad(found, ours, slope), torch.autograd.grad(wanted, exact, slope.double()), strict=True
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-3)


def test_equal_weights_are_batch_norm() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 4, 3, 3), torch.randn(4), torch.randn(4)
    equal = torch.full((5, 5), 0.2)
    wanted = F.batch_norm(x, None, None, weight, bias, True, 0.0, 1e-5)
    torch.testing.assert_close(neighbour_norm(x, equal, weight, bias, 1e-5), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(neighbour_norm(x, equal, weight, bias, 1e-5, relu=True), F.relu(wanted))
    plain = F.batch_norm(x, None, None, None, None, True, 0.0, 1e-5)
    torch.testing.assert_close(neighbour_norm(x, equal, None, None, 1e-5), plain, rtol=1e-4, atol=1e-5)


def test_images_of_their_own_group_do_not_see_the_others() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, 3, 3)
    x[3:] = 5 * x[3:] + 7
    rows = torch.block_diag(torch.full((3, 3), 1 / 3), torch.full((3, 3), 1 / 3))
    layer = TestTimeNorm(nn.BatchNorm2d(4))
    apart = torch.cat([layer(x[:3]), layer(x[3:])])
    share_neighbours(layer, neighbours := Neighbours())
    assert not torch.allclose(layer(x), apart, atol=0.1)  # nothing is set yet: one group
    neighbours.set(rows)
    torch.testing.assert_close(layer(x), apart, rtol=1e-4, atol=1e-4)
    layer.statistics = "source"
    torch.testing.assert_close(layer(x), x / (1 + 1e-5) ** 0.5)


def test_other_sizes_and_layers_without_images_are_left_alone() -> None:
    torch.manual_seed(0)
    neighbours = Neighbours()
    neighbours.set(rows_of(4))
    flat = set_statistics(nn.Sequential(nn.BatchNorm1d(3)), "batch")
    plain = set_statistics(nn.Sequential(nn.BatchNorm2d(3)), "batch")
    x, images = torch.randn(4, 3), torch.randn(5, 3, 2, 2)
    before = flat(x), plain(images)
    share_neighbours(flat, neighbours)
    share_neighbours(plain, neighbours)
    assert torch.equal(flat(x), before[0]) and torch.equal(plain(images), before[1])


def test_weights_are_written_in_place_and_sizes_are_bounded() -> None:
    neighbours, x = Neighbours(), torch.zeros(3, 1, 1, 1)
    neighbours.set(torch.eye(3))
    kept = neighbours.of(x)
    neighbours.set(torch.eye(3).flip(0))
    assert kept is not None and neighbours.of(x) is kept and float(kept[0, 0]) == 0
    for size in range(2, 2 * MOST_SIZES):
        neighbours.set(torch.eye(size))
    assert neighbours.of(torch.zeros(MOST_SIZES + 1, 1, 1, 1)) is not None
    assert neighbours.of(torch.zeros(MOST_SIZES + 2, 1, 1, 1)) is None


def test_equal_weights_leave_the_layers_their_usual_way() -> None:
    neighbours, x = Neighbours(), torch.zeros(3, 1, 1, 1)
    neighbours.set(torch.eye(3))
    kept = neighbours.of(x)
    neighbours.set(torch.full((3, 3), 1 / 3))
    assert neighbours.of(x) is None
    neighbours.set(torch.eye(3))
    assert neighbours.of(x) is kept  # nothing is made anew


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (200, 160, 32, 32), (50, 16, 32, 32), (2, 70, 3, 3), (64, 640, 8, 8)])
def test_kernels_agree_with_the_formula(shape: tuple[int, ...], dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(0)
    x = (2 * torch.randn(shape, device="cuda") + 3).to(dtype).contiguous(memory_format=torch.channels_last)
    rows, slope = rows_of(shape[0], "cuda"), torch.randn_like(x)
    weight, bias = torch.randn(2, shape[1], device="cuda")
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    bound = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    with fused.kernels_on():
        assert fused.suits(inputs[0], inputs[1], inputs[2])
        ours = neighbour_norm(inputs[0], rows, inputs[1], inputs[2], 1e-5, relu)
    wanted = by_formula(exact[0], rows.double(), exact[1], exact[2])
    if relu:  # next to the bend rounding decides which of two slopes it is, of a few among millions
        slope = torch.where(wanted.abs() < bound, 0.0, slope).to(dtype)
        wanted = F.relu(wanted)
    assert ours.dtype == dtype and ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours.double(), wanted, rtol=bound, atol=bound)
    mine = torch.autograd.grad(ours, inputs, slope)
    theirs = torch.autograd.grad(wanted, exact, slope.double())
    for one, other, size in zip(mine, theirs, (1.0, shape[2] * shape[3], shape[2] * shape[3]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=10 * bound, atol=10 * bound * size**0.5)
    again = torch.autograd.grad(neighbour_norm_fused(inputs, rows, relu), inputs, slope)
    assert all(torch.equal(one, other) for one, other in zip(mine, again, strict=True))  # equal inputs, equal bits


def neighbour_norm_fused(inputs: list[Tensor], rows: Tensor, relu: bool) -> Tensor:
    with fused.kernels_on():
        return neighbour_norm(inputs[0], rows, inputs[1], inputs[2], 1e-5, relu)
