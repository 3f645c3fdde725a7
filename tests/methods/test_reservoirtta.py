"""ReservoirTTA's styles, centres, copies and its two bases, against a slow version in NumPy."""

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from by_hand import entropies, logits, slope, softmax
from by_hand_batch import numbers
from torch import Tensor, nn
from torch.nn import functional as F

import slomofast as sf
from slomofast.core.adapter import Adapter
from slomofast.core.rng import Rng
from slomofast.methods import reservoirtta
from slomofast.testing import batches, make, shifted, synthetic_batch, tiny_net

E0 = 0.4 * math.log(3)
SCALES = ([1, 1, 1, 1], [6, 1, 0.2, 1], [0.3, 4, 1, 5])  # of the inputs, in three domains
Batches = list[tuple[Tensor, Tensor]]


def source(count: int = 4, rows: int = 8) -> Batches:
    """Source vectors; the labels are out of range, because nobody may look at them."""
    return [(by_hand.inputs(rows, seed=40 + k), torch.full((rows,), 99)) for k in range(count)]


def inputs(domain: int, seed: int, rows: int = 8) -> Tensor:
    return by_hand.inputs(rows, seed) * torch.tensor(SCALES[domain])


def vectors(**options: Any) -> Adapter:
    """An adapter on the network worked out by hand, whose style is that of its input."""
    return sf.adapt(by_hand.network(), "reservoirtta", **options).fit_source(source())


def style(x: Tensor) -> np.ndarray:
    return np.log(numbers(x).var(0, ddof=1))


class Hand:
    """The method on scales and shifts, with lists that grow."""

    def __init__(self, adapter: Adapter) -> None:
        self.o, self.fisher = adapter.config, numbers(adapter.fisher)
        self.origin, self.tau = numbers(adapter.reservoir.origin), float(adapter.reservoir.threshold)
        self.copies = [self.fresh(by_hand.GAMMA_BETA)]
        self.centres, self.moments, self.buffer, self.seen = np.zeros((1, 4)), [np.zeros((1, 4))] * 2, [], 0
        self.centre_steps, self.largest = 0, 0
        self.rng = Rng(0, torch.device("cpu"))
        self.rng.load(adapter.rng.state())

    def fresh(self, theta: np.ndarray) -> dict[str, Any]:
        average = np.full(3, 1 / 3) if self.o.base == "roid" else None
        return {"theta": theta, "first": np.zeros(8), "second": np.zeros(8), "steps": 0, "average": average}

    def step(self, batch: Tensor) -> np.ndarray:
        x, s = numbers(batch), style(batch) - self.origin
        self.largest = max(self.largest, len(x))
        new = self.open(s) if len(x) == self.largest else False
        q = self.cluster(s)
        self.remember(s)
        if new and self.o.init == "information":
            best = min(self.copies[:-1], key=lambda copy: self.uninformed(logits(copy["theta"], x)))
            self.copies[-1] = {**self.copies[-1], **{k: best[k] for k in ("theta", "first", "second", "steps")}}
        mixed = sum(share * copy["theta"] for share, copy in zip(q, self.copies, strict=True))
        nearest = self.copies[int(q.argmax())]
        before = logits(mixed if self.o.ensemble else nearest["theta"], x)
        self.q, self.new = q, new
        (self.roid if self.o.base == "roid" else self.eata)(nearest, x)
        return before

    def open(self, s: np.ndarray) -> bool:
        new = min(np.linalg.norm(s - c) for c in self.centres) > self.tau and len(self.centres) < self.o.max_domains
        if new:
            self.centres = np.vstack([self.centres, s])
            self.copies.append(self.fresh(by_hand.GAMMA_BETA))
            self.moments, self.centre_steps = [np.zeros_like(self.centres)] * 2, 0
        return new

    def cluster(self, s: np.ndarray) -> np.ndarray:
        rows = np.array([*self.buffer, s])

        def assignment(flat: np.ndarray) -> np.ndarray:
            centres = flat.reshape(-1, 4)
            return softmax(-np.linalg.norm(rows[:, None] - centres[None], axis=2))

        def loss(flat: np.ndarray) -> float:
            big_q = assignment(flat)
            mean = big_q.mean(0)
            return float(-(big_q * np.log(big_q)).sum(1).mean() + (mean * np.log(mean + 1e-8)).sum())

        at = self.centres.reshape(-1)
        q = assignment(at)[-1]
        g = slope(loss, at).reshape(-1, 4)
        self.centre_steps += 1
        self.moments = [0.9 * self.moments[0] + 0.1 * g, 0.999 * self.moments[1] + 0.001 * g**2]
        change = self.moments[0] / (1 - 0.9**self.centre_steps)
        change = change / (np.sqrt(self.moments[1] / (1 - 0.999**self.centre_steps)) + 1e-8)
        self.centres = self.centres * (1 - self.o.centre_lr * self.o.centre_decay) - self.o.centre_lr * change
        return q

    def remember(self, s: np.ndarray) -> None:
        capacity = self.o.style_buffer // self.o.max_domains * len(self.centres)
        r = int(float(self.rng.uniform(1)) * self.seen)
        if len(self.buffer) < capacity:
            self.buffer.append(s)
        else:
            if r < capacity:
                self.buffer[r] = s
            if self.seen > 10 * capacity:
                self.seen = capacity
        self.seen += 1

    def uninformed(self, z: np.ndarray) -> float:
        mean = softmax(z).mean(0)
        return float(entropies(z).mean() + (mean * np.log(mean + 1e-8)).sum())

    def eata(self, copy: dict[str, Any], x: np.ndarray) -> None:
        p = softmax(logits(copy["theta"], x))
        h = entropies(logits(copy["theta"], x))
        kept, m = h < E0, copy["average"]
        if m is not None:
            kept &= np.abs(p @ m / np.linalg.norm(p, axis=1) / np.linalg.norm(m)) < 0.8
        if not kept.any():
            return
        copy["average"] = p[kept].mean(0) if m is None else 0.9 * m + 0.1 * p[kept].mean(0)
        weight = np.exp(E0 - h)

        def loss(theta: np.ndarray) -> float:
            moved = self.fisher * (theta - by_hand.GAMMA_BETA) ** 2
            return float((weight * entropies(logits(theta, x)))[kept].mean() + self.o.fisher_weight * moved.sum())

        self.adam(copy, slope(loss, copy["theta"]))

    def roid(self, copy: dict[str, Any], x: np.ndarray) -> None:
        p, m = softmax(logits(copy["theta"], x)), copy["average"]
        diverse = 1 - p @ m / np.linalg.norm(p, axis=1) / np.linalg.norm(m)
        certain = -entropies(logits(copy["theta"], x))
        diverse, certain = ((v - v.min()) / (v.max() - v.min()) for v in (diverse, certain))
        weight = np.where(diverse < diverse.mean(), 0.0, np.exp(diverse * certain * 3))
        copy["average"] = 0.9 * m + 0.1 * p.mean(0)

        def loss(theta: np.ndarray) -> float:
            q = softmax(logits(theta, x)).clip(max=0.99)
            return float((weight * -(q * np.log(q / (1 - q) + 1e-5)).sum(1)).sum() / len(x))

        self.adam(copy, slope(loss, copy["theta"]))
        copy["theta"] = 0.99 * copy["theta"] + 0.01 * by_hand.GAMMA_BETA

    def adam(self, copy: dict[str, Any], g: np.ndarray) -> None:
        copy["steps"] += 1
        copy["first"], copy["second"] = 0.9 * copy["first"] + 0.1 * g, 0.999 * copy["second"] + 0.001 * g**2
        first, second = copy["first"] / (1 - 0.9 ** copy["steps"]), copy["second"] / (1 - 0.999 ** copy["steps"])
        copy["theta"] = copy["theta"] - self.o.lr * first / (np.sqrt(second) + 1e-8)


STREAM = (0, 0, 1, 1, 0, 2, 2, 1, 0, 2, 1, 0)  # domains


@pytest.mark.parametrize(
    "options", [{}, {"init": "source"}, {"ensemble": False}, {"base": "roid"}, {"base": "roid", "init": "source"}]
)
def test_a_stream_by_hand(options: dict[str, Any]) -> None:
    adapter = vectors(
        lr=0.05, redundancy_margin=0.8, fisher_weight=20.0, max_domains=3, style_buffer=6, centre_lr=0.05,
        centre_decay=0.5, **options,
    )  # fmt: skip
    hand, reservoir, opened = Hand(adapter), adapter.reservoir, []
    for seed, domain in enumerate(STREAM):
        x = inputs(domain, seed)
        assert np.allclose(numbers(adapter(x)), hand.step(x), atol=1e-4)
        count = len(hand.copies)
        opened.append(hand.new)
        assert int(reservoir.count) == count == int(adapter.logged["domains"])
        assert int(adapter.logged["domain"]) == hand.q.argmax() and bool(adapter.logged["new_domain"]) == hand.new
        assert float(adapter.logged["share"]) == pytest.approx(hand.q.max(), abs=1e-4)
        assert np.allclose(numbers(reservoir.opened + reservoir.moved)[:count], hand.centres, atol=1e-3)
        assert np.allclose(numbers(reservoir.styles)[: len(hand.buffer)], hand.buffer, atol=1e-4)
        assert int(reservoir.filled) == len(hand.buffer) and int(reservoir.seen) == hand.seen
        for found, copy in zip(reservoir.copies, hand.copies, strict=False):
            assert np.allclose(numbers(found[:8]), copy["theta"], atol=2e-4)
            assert int(found[8]) == copy["steps"]
            assert np.allclose(numbers(found[9:17]), copy["first"], atol=1e-4)
            assert np.allclose(numbers(found[25:28]), 0.0 if copy["average"] is None else copy["average"], atol=1e-4)
    assert sum(opened) == 2 and opened[2] and opened[5]
    steps = [copy["steps"] for copy in hand.copies]
    assert min(steps) >= 2 and len({tuple(copy["theta"].round(3)) for copy in hand.copies}) == 3
    assert int(reservoir.filled) == 6, "replacing has not been seen"


def test_shares_are_of_plain_distances_and_weigh_the_prediction() -> None:
    adapter = vectors(max_domains=2, centre_lr=0.0, lr=0.0, style_buffer=2)
    reservoir = adapter.reservoir
    adapter(inputs(1, 0))
    reservoir.copies[1, :8] = torch.arange(8.0)
    x = inputs(0, 3) * torch.tensor([2.5, 1.0, 0.45, 1.0])
    s = style(x)
    far = [np.linalg.norm(s - c) for c in (numbers(reservoir.origin), style(inputs(1, 0)))]
    q = softmax(-np.array(far))
    assert q.min() > 0.02, "one domain alone would show nothing"
    expected = logits(q[0] * by_hand.GAMMA_BETA + q[1] * np.arange(8.0), numbers(x))
    assert np.allclose(numbers(adapter.predict(x)), expected, atol=1e-3)
    assert np.allclose(numbers(adapter(x)), expected, atol=1e-3)


# -- source ----------------------------------------------------------------------------------------------------------


def test_threshold_is_a_quantile_of_distances_between_shuffled_source_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservoirtta, "STYLES", 20)
    adapter = sf.adapt(by_hand.network(), "reservoirtta", quantile=0.7, source_images=30).fit_source(source())
    pool = torch.cat([x for x, _ in source()])[:30]
    draws, found = Rng(0, torch.device("cpu")), []
    while len(found) < 20:
        order = draws.order(30)
        found += [style(pool[order[k : k + 8]]) for k in range(0, 30, 8)]  # the last of six images stays
    far = [np.linalg.norm(a - b) for i, a in enumerate(found) for b in found[:i]]
    assert len(far) == 190
    assert float(adapter.reservoir.threshold) == pytest.approx(np.quantile(far, 0.7), rel=1e-4)
    assert np.allclose(numbers(adapter.reservoir.origin), np.mean(found, 0), atol=1e-5)


def test_source_batches_are_as_large_as_full_ones() -> None:
    small = sf.adapt(by_hand.network(), "reservoirtta", full_batch=3).fit_source(source())
    assert float(small.reservoir.threshold) > 1.3 * float(vectors().reservoir.threshold)


def test_the_loader_is_read_once_for_styles_and_fisher_information() -> None:
    class Once:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.read = 0
            for batch in source(9):
                self.read += 1
                yield batch

    for images, fisher_images, read in ((20, 40, 5), (40, 20, 5)):
        loader = Once()
        options = {"fisher_images": fisher_images}
        adapter = sf.adapt(by_hand.network(), "reservoirtta", source_images=images, **options).fit_source(loader)
        eata = sf.adapt(by_hand.network(), "eata", **options).fit_source(source(9))
        assert loader.read == read
        assert torch.equal(adapter.fisher, eata.fisher) and adapter.fisher.any()
    plain = sf.adapt(by_hand.network(), "reservoirtta", fisher="none", source_images=16).fit_source(Once())
    roid = sf.adapt(by_hand.network(), "reservoirtta", base="roid", source_images=16).fit_source(Once())
    assert not plain.fisher.any() and not roid.fisher.any()


@pytest.mark.parametrize("batches", [source(1), [(torch.ones(8, 4), torch.zeros(8))] * 4, source(3, 1)])
def test_source_images_without_two_styles_are_refused(batches: Batches) -> None:
    # one batch; constant images; single vectors, which have no variance
    with pytest.raises(sf.ConfigError, match="style"):
        sf.adapt(by_hand.network(), "reservoirtta").fit_source(batches)


def test_the_stream_waits_for_the_source() -> None:
    for options in ({}, {"fisher": "none"}, {"base": "roid"}):
        with pytest.raises(sf.ConfigError, match="fit_source"):
            sf.adapt(by_hand.network(), "reservoirtta", **options)(by_hand.inputs())


def test_a_buffer_needs_a_place_for_every_domain() -> None:
    with pytest.raises(sf.ConfigError, match="style_buffer"):
        sf.adapt(by_hand.network(), "reservoirtta", style_buffer=15)


# -- style -----------------------------------------------------------------------------------------------------------


def log_variance(*outputs: Tensor) -> Tensor:
    return torch.cat([y.transpose(0, 1).flatten(1).var(1, unbiased=True).log() for y in outputs])


@pytest.mark.parametrize("rows", [1, 16])
def test_style_is_the_log_variance_of_the_first_convolutions_before_what_follows(rows: int) -> None:
    net = tiny_net("batch")
    net[2] = nn.ReLU(inplace=True)
    net[1] = nn.Identity()  # the rectifier writes over what the convolution made
    adapter = make("reservoirtta", net, style_layers=2)
    x = batches(1)[0][:rows]
    first = net[0](x).detach()
    second = net[3](first.relu()).detach()
    torch.testing.assert_close(adapter.style(x), log_variance(first, second))
    short = make("reservoirtta", net, style_layers=1)
    torch.testing.assert_close(short.style(x), log_variance(first))


def test_style_looks_through_stored_statistics_and_source_weights() -> None:
    net, x = tiny_net("batch"), batches(1)[0]
    adapter = make("reservoirtta", net)
    before = adapter.style(x)
    torch.testing.assert_close(before, log_variance(*(part(x).detach() for part in (net[:1], net[:4]))))
    for batch in batches(4):
        adapter(batch)
    assert torch.equal(adapter.style(x), before)
    assert not any(m._forward_hooks for m in adapter.modules())


def test_the_pass_for_the_style_ends_at_the_last_convolution() -> None:
    class Late(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Late.calls += 1
            return x

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Late(), nn.Flatten(), nn.Linear(400, 3))
    adapter = make("reservoirtta", net)
    Late.calls = 0
    adapter.style(batches(1)[0])
    assert Late.calls == 0


def test_a_channel_without_variance_does_no_harm() -> None:
    net = tiny_net("batch")
    nn.init.zeros_(net[0].weight[0])
    adapter = make("reservoirtta", net)
    assert torch.isfinite(adapter(batches(1)[0])).all() and torch.isfinite(adapter.reservoir.threshold)
    grey = torch.full((16, 3, 12, 12), 0.5)  # no variance anywhere in the first layer but at its edges
    assert torch.isfinite(adapter.style(grey)).all() and torch.isfinite(adapter(grey)).all()


def vgg_file(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(3)
    sizes = {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128)}
    state = {f"features.{n}.weight": 0.05 * torch.randn(*size, 3, 3, generator=draw) for n, size in sizes.items()}
    state |= {f"features.{n}.bias": torch.randn(size[0], generator=draw) for n, size in sizes.items()}
    torch.save(state, folder / "vgg19.pth")
    return folder / "vgg19.pth", state


def test_vgg_gives_the_published_style(tmp_path: Path) -> None:
    path, state = vgg_file(tmp_path)
    before = torch.random.get_rng_state()
    adapter = make("reservoirtta", tiny_net("layer"), vgg19=str(path))
    assert torch.equal(torch.random.get_rng_state(), before)
    x = batches(1)[0]
    mean, std = (torch.tensor(v)[None, :, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    w = [(state[f"features.{n}.weight"], state[f"features.{n}.bias"]) for n in (0, 2, 5, 7)]
    first = F.conv2d(F.conv2d((x - mean) / std, *w[0], padding=1).relu(), *w[1], padding=1)
    second = F.conv2d(F.max_pool2d(first.relu(), 2), *w[2], padding=1)
    third = F.conv2d(second.relu(), *w[3], padding=1)
    assert adapter.style.size == 320
    torch.testing.assert_close(adapter.style(x), log_variance(first, second, third), rtol=1e-4, atol=1e-4)
    expected = adapter(x)
    adapter.reset()
    assert torch.equal(adapter(x), expected)


def test_wrong_vgg_files_and_images_are_refused(tmp_path: Path) -> None:
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("missing.pth", "other.pth", "text.pth"):
        with pytest.raises(sf.ConfigError, match="vgg19"):
            make("reservoirtta", tiny_net(), vgg19=str(tmp_path / name))
    with pytest.raises(sf.ConfigError, match="three channels"):
        vectors(vgg19=str(vgg_file(tmp_path)[0]))


# -- domains ---------------------------------------------------------------------------------------------------------


def test_one_domain_alone_is_eata() -> None:
    plain = make("eata", tiny_net(), fisher_weight=2000.0, redundancy_margin=0.8)
    alone = make("reservoirtta", tiny_net(), max_domains=1, redundancy_margin=0.8)
    for x in batches(5):
        assert torch.equal(alone(x), plain(x))
    assert torch.equal(alone.student.body[1].weight, plain.student.body[1].weight)
    assert not torch.equal(alone.student.body[1].weight, tiny_net()[1].weight)


@pytest.mark.parametrize("base", ["eata", "roid"])
def test_other_copies_and_their_moments_stay_as_they_are(base: str) -> None:
    adapter = vectors(base=base, lr=0.05, redundancy_margin=1.0)
    for seed, domain in enumerate((0, 0, 1, 1)):
        adapter(inputs(domain, seed))
    before = adapter.reservoir.copies.clone()
    adapter(inputs(0, 9))
    changed = (adapter.reservoir.copies != before).any(1)
    assert changed.tolist() == [True] + [False] * 15
    assert before[:3, 8].tolist() == [2, 4, 0]  # steps; the second copy began with two of the first


def test_a_new_domain_takes_weights_and_moments_but_no_average() -> None:
    adapter = vectors(lr=0.05, redundancy_margin=1.0)
    for seed in range(3):
        adapter(inputs(0, seed))
    old = adapter.reservoir.copies[0].clone()
    adapter._learn = lambda _: None
    adapter(inputs(1, 5))
    copies = adapter.reservoir.copies
    assert int(adapter.reservoir.count) == 2 and torch.equal(copies[1, :25], old[:25]) and old[25:28].any()
    assert not copies[1, 25:].any()


def test_a_batch_without_a_sample_to_learn_from_changes_no_copy() -> None:
    adapter = vectors(entropy_margin=1e-6, lr=0.1)
    before = adapter.reservoir.copies.clone()
    for seed in range(3):
        adapter(inputs(0, seed))
    assert torch.equal(adapter.reservoir.copies, before) and int(adapter.reservoir.seen) == 3


def test_a_short_batch_opens_nothing_but_is_remembered() -> None:
    adapter, told, x = vectors(), vectors(full_batch=5), 20 * inputs(1, 1)
    for one in (adapter, told):
        one(inputs(0, 0))
        one(x[:5])
        assert int(one.reservoir.filled) == 2
        assert np.allclose(numbers(one.reservoir.styles[1] + one.reservoir.origin), style(x[:5]), atol=1e-5)
    assert int(adapter.reservoir.count) == 1 and int(told.reservoir.count) == 2
    adapter(x)
    assert int(adapter.reservoir.count) == 2


def test_there_are_no_more_domains_than_allowed() -> None:
    adapter = vectors(max_domains=2)
    for seed in range(6):
        adapter(inputs(seed % 3, seed))
    assert int(adapter.reservoir.count) == 2 and int(adapter.logged["domain"]) < 2


def test_the_counter_of_styles_is_cut_at_ten_times_the_places() -> None:
    adapter = vectors(max_domains=1, style_buffer=2)
    hand = Hand(adapter)
    seen = []
    for seed in range(24):
        adapter(inputs(0, seed))
        hand.remember(style(inputs(0, seed)) - hand.origin)
        seen.append(int(adapter.reservoir.seen))
        assert seen[-1] == hand.seen
        assert np.allclose(numbers(adapter.reservoir.styles)[: len(hand.buffer)], hand.buffer, atol=1e-4)
    assert seen[20:22] == [21, 3]


def test_predict_weighs_the_copies_alike_and_opens_nothing() -> None:
    for ensemble in (True, False):
        adapter = vectors(lr=0.05, redundancy_margin=1.0, ensemble=ensemble)
        for seed, domain in enumerate((0, 1, 0, 1, 2)):
            adapter(inputs(domain, seed))
        for domain in range(3):
            x = inputs(domain, 20)
            expected, plain = adapter.predict(x), adapter.export()
            torch.testing.assert_close(plain(x), expected)
            torch.testing.assert_close(adapter(x), expected)
        torch.manual_seed(0)
        adapter.predict(torch.randn(8, 4) * 1e3)
        assert int(adapter.reservoir.count) == 3


@pytest.mark.parametrize(("options", "usual", "opening"), [
    ({}, 2, 3), ({"ensemble": False}, 1, 2), ({"init": "source"}, 2, 2), ({"init": "source", "ensemble": False}, 1, 1)
])  # fmt: skip
def test_no_pass_is_made_twice(options: dict[str, Any], usual: int, opening: int) -> None:
    adapter, passes = vectors(**options), []
    inside = adapter.student.body.forward
    adapter.student.body.forward = lambda x: passes.append(1) or inside(x)
    for domain, expected in ((0, usual), (1, opening), (1, usual)):
        passes.clear()
        adapter(inputs(domain, 7 + domain))
        assert len(passes) == expected


def test_recorded_passes_serve_the_step_and_not_the_prediction() -> None:
    adapter, seen = vectors(lr=0.05), []
    for seed, domain in enumerate((0, 1, 0)):
        adapter(inputs(domain, seed))
    student, x = adapter.student, inputs(1, 5)
    expected = adapter.predict(x)
    student.recorder = lambda images: seen.append(1) or student.body(images)
    assert torch.equal(adapter.predict(x), expected) and not seen
    adapter(x)
    assert len(seen) == 2


# -- small and bad batches, state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["eata", "roid"])
def test_a_single_vector_has_no_style_and_counts_as_the_sources(base: str) -> None:
    adapter = vectors(base=base)
    adapter(inputs(0, 0))
    before = {key: value.clone() for key, value in adapter.reservoir.state_dict().items() if "copies" not in key}
    x = inputs(1, 0, rows=1)
    assert torch.isfinite(adapter(x)).all() and torch.isfinite(adapter.predict(x)).all()
    assert all(
        torch.equal(value, before[key]) for key, value in adapter.reservoir.state_dict().items() if key in before
    )
    assert torch.isfinite(adapter.reservoir.copies).all() and adapter.skipped == 0


@pytest.mark.filterwarnings("ignore:.*was not finite")
@pytest.mark.parametrize("base", ["eata", "roid"])
def test_a_bad_batch_leaves_no_trace(base: str) -> None:
    adapter = make("reservoirtta", tiny_net(), base=base, redundancy_margin=1.0, check_input="deferred")
    stream = batches(3)
    adapter(stream[0])
    before = {key: value.clone() for key, value in adapter.reservoir.state_dict().items()}
    bad = torch.cat([stream[1], stream[2]])
    bad[0, 0, 0, 0] = float("nan")
    adapter(bad)
    after = adapter.reservoir.state_dict()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert int(adapter.full) == 16


@pytest.mark.parametrize("base", ["eata", "roid"])
@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_domains_are_found_on_tiny_networks(kind: str, base: str) -> None:
    adapter = make("reservoirtta", tiny_net(kind), base=base, redundancy_margin=1.0, lr=1e-2)
    draw, found = torch.Generator().manual_seed(2), []
    looks: list[Callable[[Tensor], Tensor]] = [lambda x: x, shifted, lambda x: 0.05 * x]
    for step in range(12):
        x = looks[step // 2 % 3](synthetic_batch(16, draw)[0])
        assert torch.isfinite(adapter(x)).all()
        found.append(int(adapter.logged["domain"]))
    assert found == [0, 0, 1, 1, 2, 2] * 2 and adapter.skipped == 0
    weights = adapter.reservoir.weights[:3]
    assert all((weights[a] - weights[b]).abs().max() > 1e-3 for a, b in ((0, 1), (1, 2), (0, 2)))


def test_reset_and_reload_bring_back_everything(tmp_path: Path) -> None:
    source_net = by_hand.network()
    adapter = sf.adapt(source_net, "reservoirtta", lr=0.05, redundancy_margin=1.0, max_domains=3, style_buffer=3)
    adapter.fit_source(source())
    first = {key: value.clone() for key, value in adapter.state_dict().items() if isinstance(value, Tensor)}
    stream = [inputs(domain, seed) for seed, domain in enumerate(STREAM)]
    outputs = [adapter(x) for x in stream]
    middle = sf.adapt(source_net, "reservoirtta", lr=0.05, redundancy_margin=1.0, max_domains=3, style_buffer=3)
    middle.fit_source(source())
    for x in stream[:6]:  # three domains are open, and the buffer is full
        middle(x)
    assert int(middle.reservoir.count) == int(middle.reservoir.filled) == 3
    middle.save(tmp_path / "middle.pt")
    again = sf.load(tmp_path / "middle.pt", source_net)
    assert all(torch.equal(again(x), y) for x, y in zip(stream[6:], outputs[6:], strict=True))
    for one in (adapter, again):
        one.reset()
        assert int(one.reservoir.count) == 1 and int(one.reservoir.filled) == 0
        assert [key for key, value in first.items() if not torch.equal(value, one.state_dict()[key])] == []
        assert all(torch.equal(one(x), y) for x, y in zip(stream, outputs, strict=True))


@pytest.mark.parametrize("base", ["eata", "roid"])
def test_without_a_choice_of_start_the_host_asks_the_device_nothing(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = make("reservoirtta", tiny_net(), init="source", base=base, check_input="off")
    stream = batches(3)
    adapter(stream[0])

    def asked(*_: Any) -> None:
        raise AssertionError("the host waited")

    monkeypatch.setattr(adapter, "_skipped_here", lambda: 0)  # read on a CPU only
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "numpy", "cpu"):
        monkeypatch.setattr(Tensor, name, asked)
    y = adapter(stream[1])
    y = adapter(1 - stream[2])
    monkeypatch.undo()
    assert torch.isfinite(y).all() and int(adapter.reservoir.count) >= 2


def test_a_network_with_nothing_to_train_still_predicts() -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), by_hand.inputs(8)
    for base in ("eata", "roid"):
        with pytest.warns(UserWarning, match="no norm layers"):
            adapter = sf.adapt(net, "reservoirtta", base=base).fit_source(source())
        for domain in (0, 1):
            x = inputs(domain, 0)
            assert torch.allclose(adapter(x), net(x).detach(), atol=1e-6)
            assert torch.allclose(adapter.predict(x), net(x).detach(), atol=1e-6)


@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("clang") is None, reason="compiling needs a compiler")
def test_compiled_networks_agree() -> None:
    plain, fast = (make("reservoirtta", tiny_net("layer"), compile=on, redundancy_margin=1.0) for on in (False, True))
    for x in batches(3):
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(fast.predict(x), plain.predict(x), rtol=1e-3, atol=1e-3)


def test_presets_are_those_of_the_data_sets() -> None:
    config = reservoirtta.ReservoirTTAConfig
    chosen = (config(), config.for_("imagenet"), config.for_("ccc_vit"), config.for_("ccc_roid"))
    found = [(c.optimizer, c.lr, c.redundancy_margin, c.fisher_weight, c.base, c.style_buffer) for c in chosen]
    assert found == [
        ("adam", 1e-3, None, 2000.0, "eata", 1024),
        ("sgd", 2.5e-4, 0.05, 2000.0, "eata", 1024),
        ("sgd", 1e-4, 0.05, 2000.0, "eata", 1024),
        ("sgd", 2.5e-4, 0.05, 2000.0, "roid", 4096),
    ]
    c = config()
    assert (c.max_domains, c.quantile, c.source_images, c.centre_lr, c.centre_decay) == (16, 0.999, 2000, 1e-4, 0.01)
