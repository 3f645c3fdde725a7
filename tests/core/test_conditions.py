"""Conditions told from the images alone: what marks say, how batches fall apart, and what the networks make of it."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import slomofast as sf
from slomofast.conditions import FLOOR, Conditions, Unmixed, can_tell, marks
from slomofast.core.neighbours import Neighbours
from slomofast.core.norms import set_statistics, share_neighbours
from slomofast.methods.slomo_fast import SloMoFastAdapter
from slomofast.testing import CLASSES, tiny_net

FINEST = [0, 1, 2, 3, 13, 14, 15, 16]  # marks of the finest detail: four in grey, four in colour
BRIGHTNESS = 23
NO_DETAIL = 0.5 * torch.tensor(FLOOR).log()


def clean(count: int, side: int = 16) -> Tensor:
    return F.interpolate(torch.rand(count, 3, 6, 6), size=(side, side), mode="bilinear")


def noisy(count: int) -> Tensor:
    return with_noise(clean(count), 0.15)


def dull(count: int) -> Tensor:
    return 0.25 * blurred(clean(count)) + 0.5


def with_noise(x: Tensor, amount: float) -> Tensor:
    return (x + amount * torch.randn_like(x)).clamp(0, 1)


def blurred(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)


WAYS: tuple[Callable[[int], Tensor], ...] = (clean, noisy, dull)


def mixed(count: int) -> tuple[Tensor, Tensor]:
    """Images of three conditions in turn, and which it is of each."""
    condition = torch.arange(count) % len(WAYS)
    return torch.stack([way(count) for way in WAYS])[condition, torch.arange(count)], condition


def fitted(batches: int, size: int = 60, into: Conditions | None = None) -> Conditions:
    conditions = into or Conditions()
    for step in range(batches):
        conditions.learn(marks(mixed(size)[0]), step)
    return conditions


def equal(count: int) -> Tensor:
    return torch.full((count, count), 1 / count)


def assert_told_apart(rows: Tensor | None, condition: Tensor) -> None:
    """Pairs that count above the equal share are those of the same condition, but for a tenth."""
    assert rows is not None and rows.shape == (len(condition), len(condition))
    torch.testing.assert_close(rows.sum(1), torch.ones(len(condition)))
    above, same = rows > (1 + 1e-4) / len(condition), condition[:, None] == condition
    assert float(same[above].float().mean()) >= 0.9 and float(above[same].float().mean()) >= 0.9


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def same_buffers(module: nn.Module, before: dict[str, Tensor]) -> bool:
    return bool(before) and all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


@pytest.mark.parametrize(
    ("shape", "images"),
    [
        ((3, 8, 8), True),
        ((1, 9, 11), True),
        ((3, 8, 7), False),
        ((3, 7, 8), False),
        ((8, 8), False),
        ((), False),
        ((3, 8, 8, 8), False),
    ],
)
def test_detail_can_be_told_of_images_that_are_large_enough(shape: tuple[int, ...], images: bool) -> None:
    assert can_tell(shape) is images
    if images:
        assert marks(torch.rand(2, *shape)).isfinite().all()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32), (3, 9, 11), (1, 8, 15)])
def test_marks_of_images_without_detail_are_finite_and_tell_their_brightness_alone(shape: tuple[int, ...]) -> None:
    assert marks(torch.rand(5, *shape)).shape == (5, 24)
    plain = torch.tensor([0.0, 0.5, 1.0])[:, None, None, None].expand(3, *shape)
    expected = NO_DETAIL.expand(3, 24).clone()
    expected[:, BRIGHTNESS] = torch.tensor([0.0, 1.0, 2.0])
    torch.testing.assert_close(marks(plain), expected)


def test_marks_know_direction_and_colour() -> None:
    across = torch.tensor([0.0, 1.0]).repeat(8).expand(1, 3, 16, 16)
    found = torch.cat([marks(across), marks(across.mT)])
    assert (found[0, 0] > -1) and (found[1, 1] > -1)
    torch.testing.assert_close(torch.stack([found[0, 1], found[1, 0]]), NO_DETAIL.expand(2))
    torch.testing.assert_close(found[:, 13:BRIGHTNESS], NO_DETAIL.expand(2, BRIGHTNESS - 13))  # grey has no colour
    red = across * torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    assert float(marks(red)[0, 13]) > -2


def test_marks_are_the_energies_of_haars_bands() -> None:
    x = torch.rand(3, 3, 16, 24)
    grey = x.mean(1, keepdim=True)
    wanted = []
    for plane, levels in ((grey, 3), (x - grey, 2)):
        for _ in range(levels):
            a, b = plane[..., ::2, ::2], plane[..., ::2, 1::2]
            c, d = plane[..., 1::2, ::2], plane[..., 1::2, 1::2]
            details = [(a - b + c - d) / 2, (a + b - c - d) / 2, (a - b - c + d) / 2]
            wanted += [detail.square().mean((1, 2, 3)) for detail in details]
            wanted.append(details[2].abs().mean((2, 3)).square().mean(1))
            plane = (a + b + c + d) / 4
        wanted.append(plane.var((2, 3), unbiased=False).mean(1))
    wanted.append((x - grey).square().mean((1, 2, 3)))
    logs = 0.5 * (torch.stack(wanted, 1) + 1e-4).log()
    torch.testing.assert_close(marks(x), torch.cat([logs, 2 * x.mean((1, 2, 3))[:, None]], 1))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 16), (32, 32)])
def test_a_mirror_image_has_the_same_marks(height: int, width: int) -> None:
    x = torch.rand(6, 3, height, width)
    torch.testing.assert_close(marks(x.flip(-1)), marks(x), rtol=1e-4, atol=1e-4)


def test_noise_raises_the_finest_detail_and_blur_lowers_it() -> None:
    x = clean(20, 32)
    some, more = with_noise(x, 0.05), with_noise(x, 0.2)
    amounts = [marks(images)[:, FINEST] for images in (x, some, more)]
    assert (amounts[0] < amounts[1]).all() and (amounts[1] < amounts[2]).all()
    assert (marks(blurred(some))[:, FINEST] < amounts[1]).all()


def test_a_mixture_without_any_batch_gives_equal_weights() -> None:
    torch.testing.assert_close(Conditions().weights(marks(mixed(30)[0])), equal(30))


@pytest.mark.parametrize("way", WAYS)
def test_images_of_one_condition_count_equally(way: Callable[[int], Tensor]) -> None:
    conditions = Conditions()
    for step in range(4):
        found = marks(way(200))
        conditions.learn(found, step)
        torch.testing.assert_close(conditions.weights(found), equal(200))


def test_a_mixed_batch_falls_apart_into_its_conditions_whatever_its_size_and_order() -> None:
    conditions = fitted(5)
    for size in (60, 25, 99):
        x, condition = mixed(size)
        before = buffers(conditions)
        rows = conditions.weights(marks(x))
        assert same_buffers(conditions, before)
        assert_told_apart(rows, condition)
        order = torch.randperm(size)
        torch.testing.assert_close(conditions.weights(marks(x[order])), rows[order][:, order], rtol=1e-3, atol=1e-6)
        conditions.learn(marks(x), 5)
        assert_told_apart(conditions.weights(marks(x)), condition)


@pytest.mark.parametrize("way", [*WAYS, lambda count: mixed(count)[0]], ids=["clean", "noisy", "dull", "mixed"])
def test_a_small_first_batch_counts_equally_and_does_not_stand_in_the_way(way: Callable[[int], Tensor]) -> None:
    conditions, first = Conditions(), marks(way(60))
    conditions.learn(first, 0)
    torch.testing.assert_close(conditions.weights(first), equal(60))
    for step in range(1, 20):
        x, condition = mixed(60)
        conditions.learn(marks(x), step)
    assert_told_apart(conditions.weights(marks(x)), condition)


@pytest.mark.parametrize("groups", [6, 12])
def test_mixed_batches_are_told_apart_once_there_are_enough_images(groups: int) -> None:
    conditions, (x, condition) = Conditions(groups), mixed(60)
    for step, size in enumerate((60, 12 * groups - 61)):
        conditions.learn(marks(mixed(size)[0]), step)
        torch.testing.assert_close(conditions.weights(marks(x)), equal(60))
    conditions.learn(marks(mixed(1)[0]), 2)
    assert_told_apart(conditions.weights(marks(x)), condition)


@pytest.mark.parametrize("count", [1, 60])
def test_a_first_batch_without_variety_does_not_blind_the_mixture(count: int) -> None:
    conditions = Conditions()
    conditions.learn(marks(noisy(1).expand(count, -1, -1, -1)), 0)
    for step in range(1, 25):
        x, condition = mixed(30)
        conditions.learn(marks(x), step)
    assert_told_apart(conditions.weights(marks(x)), condition)
    x, condition = mixed(60)
    assert_told_apart(conditions.weights(marks(x)), condition)


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_equal_again_once_the_mixed_stream_is_over(way: Callable[[int], Tensor]) -> None:
    conditions = fitted(5)
    for step in range(5, 8):
        found = marks(way(60))
        conditions.learn(found, step)
        torch.testing.assert_close(conditions.weights(found), equal(60))
    x, condition = mixed(60)
    assert_told_apart(conditions.weights(marks(x)), condition)


def test_a_larger_share_of_the_whole_batch_brings_weights_closer_together() -> None:
    conditions, (x, _) = fitted(3), mixed(60)
    ranges = []
    for shared in (1e-3, 10.0, 1000.0):
        conditions.shared = shared
        rows = conditions.weights(marks(x))
        ranges.append(60 * float(rows.max() - rows.min()))
    assert ranges[0] > 2.9 > ranges[1] > 2 * ranges[2], ranges  # a third of the batch counts three times at most


def test_the_last_images_are_kept_whatever_the_size_of_batches() -> None:
    conditions = Conditions(recent=150)
    assert float(conditions.held.sum()) == 0
    batches = [marks(mixed(size)[0]) for size in (50, 75, 65, 400)]
    for step, found in enumerate(batches):
        conditions.learn(found, step)
        kept = torch.cat(batches[: step + 1])[-150:]
        assert torch.equal(conditions.recent[-len(kept) :], kept)
        assert float(conditions.held.sum()) == float(conditions.held[-len(kept) :].sum()) == len(kept)
    x, condition = mixed(240)
    assert_told_apart(conditions.weights(marks(x)), condition)


def test_autocast_changes_nothing() -> None:
    exact, rough = Conditions(), Conditions()
    for step in range(3):
        found = marks(mixed(60)[0])
        exact.learn(found, step)
        with torch.autocast("cpu", torch.bfloat16):
            rough.learn(found, step)
            assert (found @ found.T).dtype == torch.bfloat16
            rows = rough.weights(found)
        assert same_buffers(rough, buffers(exact))
        assert rows.dtype == torch.float32 and torch.equal(rows, exact.weights(found))


def test_a_loaded_state_goes_on_to_the_same_weights() -> None:
    whole, again = fitted(3), Conditions()
    found = marks(mixed(60)[0])
    assert not torch.allclose(again.weights(found), whole.weights(found))
    again.load_state_dict(deepcopy(whole.state_dict()))
    for step in range(3, 6):
        assert torch.equal(again.weights(found), whole.weights(found))
        found = marks(mixed(60)[0])
        whole.learn(found, step)
        again.learn(found, step)
    assert same_buffers(again, buffers(whole))


@torch.no_grad()
def test_a_network_normalises_each_condition_by_itself() -> None:
    network, neighbours = set_statistics(nn.Sequential(nn.BatchNorm2d(3)), "batch"), Neighbours()
    conditions = fitted(5, into=Conditions(shared=1e-3))
    x, condition = mixed(60)
    apart = torch.stack([network(x[condition == which]) for which in range(3)], 1).flatten(0, 1)
    together = network(x)
    share_neighbours(network, neighbours)
    found = Unmixed(network, conditions, neighbours)(x)
    assert float((found - apart).abs().mean()) < 0.02 < 0.2 < float((together - apart).abs().mean())


def star(batches: int = 0, size: int = 60, kind: str = "batch", **options: Any) -> SloMoFastAdapter:
    """An adapter that has seen some mixed batches."""
    adapter = sf.adapt(tiny_net(kind), "slomo_fast_star", **{"conditions": 12, **options})
    assert isinstance(adapter, SloMoFastAdapter)
    adapter.prepare(clean(2))
    for _ in range(batches):
        adapter(mixed(size)[0])
    return adapter


def test_networks_are_told_about_the_batch_and_about_the_images_tried_for_the_queues() -> None:
    adapter = star(4, 72)
    x, condition = mixed(72)
    adapter(x)
    assert_told_apart(adapter.neighbours.of(x), condition)
    tried = slice(4 % 2, None, 2)  # half of the batch, the other half in turns
    assert_told_apart(adapter.neighbours.of(x[tried]), condition[tried])
    assert 36 < float(adapter.logged["group_size"]) < 71
    adapter(noisy(72))
    assert adapter.neighbours.of(x) is None and float(adapter.logged["group_size"]) == pytest.approx(72)


def test_predicting_and_exporting_treat_a_mixed_batch_as_a_step_does() -> None:
    adapter = star(4, mirror=False)
    (x, _), other = mixed(60), noisy(60)
    informed = deepcopy(adapter)
    assert informed.conditions is not None
    informed.conditions.learn(marks(x), informed.steps)
    torch.testing.assert_close(informed.predict(x), adapter(x))

    before, expected, plain = deepcopy(adapter.state_dict()), adapter.predict(x), adapter.export()
    adapter.predict(other)
    with torch.no_grad():
        plain(other)
        assert torch.equal(plain(x), expected)
    assert torch.equal(adapter.predict(x), expected)  # whatever was looked at in between
    after = adapter.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items() if isinstance(value, Tensor))


def test_an_exported_network_may_be_used_in_inference_mode_and_outside_of_it() -> None:
    plain, (x, condition) = star(4).export(), mixed(45)  # a size not seen before
    assert isinstance(plain, Unmixed) and plain.neighbours.of(x) is None
    with torch.inference_mode():
        expected = plain(x)
    assert_told_apart(plain.neighbours.of(x), condition)
    with torch.no_grad():
        plain(mixed(45)[0])
        assert torch.equal(plain(x), expected.clone())


@torch.no_grad()
def test_an_exported_network_takes_images_too_small_to_tell_as_one_group() -> None:
    plain, small, (x, condition) = star(4).export(), torch.rand(60, 3, 6, 6), mixed(60)
    assert isinstance(plain, Unmixed)
    plain(x)
    assert_told_apart(plain.neighbours.of(x), condition)
    found = plain(small)
    assert found.isfinite().all()
    plain.neighbours.set(equal(60))
    assert torch.equal(plain.network(small), found)


def test_members_are_told_about_a_mixed_batch_too() -> None:
    adapter, (x, _) = star(4), mixed(60)
    assert adapter.conditions is not None
    adapter.predict(noisy(60))
    found = adapter.members_predict(x)
    assert set(found) == {"student", "fast", "slow"}
    for name, logits in found.items():
        network = getattr(adapter, name)
        with torch.no_grad():
            adapter.neighbours.set(equal(60))
            assert not torch.allclose(network(x), logits, atol=1e-2)
            adapter.neighbours.set(adapter.conditions.weights(marks(x)))
            torch.testing.assert_close(network(x), logits)


def test_conditions_change_what_mixed_batches_give_and_nothing_else() -> None:
    x, _ = mixed(180)
    for stream, same in (([noisy(200) for _ in range(3)], True), ([x], False)):
        told, untold = star(), star(conditions=0)
        assert told.conditions is not None and untold.conditions is None
        outputs = [(told(images), untold(images)) for images in stream]
        assert all(torch.equal(one, other) is same for one, other in outputs)
    assert float((outputs[0][0].softmax(1) - outputs[0][1].softmax(1)).abs().mean()) > 0.01


@pytest.mark.filterwarnings("ignore:.*was not finite")
@pytest.mark.parametrize("seen", [0, 2])
def test_a_batch_with_nan_teaches_nothing_about_conditions(seen: int) -> None:
    adapter, (x, condition) = star(seen, check_input="deferred"), mixed(150)
    assert adapter.conditions is not None
    before, bad = buffers(adapter.conditions), x.clone()
    bad[7, 1, 3, 3] = float("nan")
    assert adapter(bad).isfinite().all()
    assert same_buffers(adapter.conditions, before)
    with pytest.raises(sf.InputError, match="held NaN or Inf"):
        adapter(x)
    assert same_buffers(adapter.conditions, before)
    adapter(x)
    assert not same_buffers(adapter.conditions, before)
    assert_told_apart(adapter.neighbours.of(x), condition)


@pytest.mark.filterwarnings("ignore:.*was not finite")
@pytest.mark.parametrize(("value", "check_input"), [(1e20, "now"), (float("nan"), "off")])
@pytest.mark.parametrize("seen", [0, 3])
def test_one_absurd_pixel_spoils_no_later_batch(value: float, check_input: str, seen: int) -> None:
    adapter, (bad, _) = star(seen, check_input=check_input), mixed(60)
    bad[7, 1, 3, 3] = value
    adapter(bad)
    for _ in range(3):
        x, condition = mixed(60)
        assert adapter(x).isfinite().all() and adapter.predict(x).isfinite().all()
    assert_told_apart(adapter.neighbours.of(x), condition)


def test_only_the_star_variant_tells_conditions_apart_unasked() -> None:
    for method, groups in (("slomo_fast", None), ("slomo_fast_star", 12)):
        adapter = sf.adapt(tiny_net("batch"), method)
        adapter(torch.rand(8, 3, 16, 16))
        assert isinstance(adapter, SloMoFastAdapter)
        assert (None if adapter.conditions is None else adapter.conditions.groups) == groups


def test_reset_forgets_conditions() -> None:
    adapter, stream = star(), [mixed(60)[0] for _ in range(3)]
    assert adapter.conditions is not None
    before = buffers(adapter.conditions)
    outputs = [adapter(x) for x in stream]
    assert not same_buffers(adapter.conditions, before)
    adapter.reset()
    assert same_buffers(adapter.conditions, before)
    assert all(torch.equal(adapter(x), y) for x, y in zip(stream, outputs, strict=True))


@pytest.mark.parametrize(
    ("kind", "shape", "options"),
    [
        ("group", (3, 16, 16), {"conditions": 12}),
        ("layer", (3, 16, 16), {"conditions": 12}),
        ("batch", (3, 7, 16), {"conditions": 12}),
        ("batch", (3, 16, 16), {"conditions": 0}),
        ("batch", (3, 16, 16), {"preset": "paper"}),
    ],
    ids=["group norm", "layer norm", "tiny images", "asked not to", "paper"],
)
@pytest.mark.parametrize("method", ["slomo_fast", "slomo_fast_star"])
def test_other_networks_tiny_images_and_those_asked_to_do_without(
    method: str, kind: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    adapter = sf.adapt(tiny_net(kind), method, **options)
    for _ in range(2):
        x = torch.rand(8, *shape)
        assert adapter(x).isfinite().all()
    assert isinstance(adapter, SloMoFastAdapter) and adapter.conditions is None
    assert not isinstance(adapter.predictor(), Unmixed) and "group_size" not in adapter.logged
    with torch.no_grad():
        assert torch.equal(adapter.export()(x), adapter.predict(x))


def test_samples_that_are_no_images_are_predicted_and_refused_as_before() -> None:
    network = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    adapter, x = sf.adapt(network, "slomo_fast_star", augment_flip=False, conditions=12), torch.rand(8, 10)
    assert adapter.predict(x).isfinite().all()
    assert isinstance(adapter, SloMoFastAdapter) and adapter.conditions is None
    with pytest.raises(sf.InputError, match="looks at altered images"):
        adapter(x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_passes_are_told_about_each_batch_without_waiting(precision: str) -> None:
    stream = [mixed(180)[0].cuda() for _ in range(8)]
    outputs = {}
    for recorded in (False, True):
        adapter = sf.adapt(
            tiny_net("batch").cuda(), "slomo_fast_star", conditions=12, precision=precision, graphs=recorded,
            channels_last=True, check_input="off",
        )  # fmt: skip
        assert isinstance(adapter, SloMoFastAdapter)
        outputs[recorded] = [adapter(x) for x in stream[:-1]]
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs[recorded].append(adapter(stream[-1]))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        rows = adapter.neighbours.of(stream[0])
        assert rows is not None and float(rows.max() - rows.min()) > 1 / 180
        networks = (adapter.student, adapter.fast, adapter.slow)
        assert all((network.recorder is not None and bool(network.recorder.passes)) == recorded for network in networks)
    bound = {"fp32": 2e-3, "bf16": 0.25}[precision]
    for one, other in zip(outputs[False], outputs[True], strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
