"""DPCore's weights, decision, steps and elements, against a slow version in NumPy; its tokens against AdamW."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers
from torch import Tensor, nn

import slomofast as sf
from slomofast.core.adapter import Adapter
from slomofast.core.errors import ConfigError, ModelError
from slomofast.core.prompts import Prompted
from slomofast.methods import dpcore
from slomofast.models.vit import TransformerBlock
from slomofast.testing import batches, make, shifted, synthetic_batch, tiny_net

Array = np.ndarray
ROWS = 20
SLANT = torch.tensor([1.5, -0.8, 0.4, 0.0])
DOMAINS: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x + SLANT).exp() / 3,
    lambda x: x - 3 * SLANT.flip(0) * x.square(),
]


def network(kind: str) -> nn.Module:
    if kind == "layer":
        return by_hand.network()
    norm, head = by_hand_batch.network()
    return nn.Sequential(norm, nn.Tanh(), head)  # behind BatchNorm alone all batches have the same statistics


def source(batches: int = 3, rows: int = ROWS) -> list[tuple[Tensor, Tensor]]:
    """Source images; the labels are out of range, because nobody may look at them."""
    return [(by_hand.inputs(rows, seed=30 + k), torch.full((rows,), 99)) for k in range(batches)]


def fitted(kind: str = "layer", **options: Any) -> Adapter:
    options = {"source_entropy": 2.0, "steps_new": 3, "lr": 0.1, **options}  # twice ln(C): every image counts
    return sf.adapt(network(kind), "dpcore", **options).fit_source(source())


def met(domain: int, seed: int = 0, rows: int = ROWS) -> Tensor:
    return DOMAINS[domain](by_hand.inputs(rows, seed))


def state(adapter: Adapter) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in adapter.state_dict().items() if isinstance(value, Tensor)}


class Hand:
    """The method in NumPy, one element after the other, with slopes from differences."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self.o = kind, options
        self.elements: list[list[Array]] = []
        clean = np.concatenate([numbers(x) for x, _ in source()])
        parts = [self.features(by_hand.GAMMA_BETA, numbers(x)) for x, _ in source()]
        self.source = self.statistics(np.concatenate(parts))
        self.unit, self.told_unit = np.ones(4), np.ones(4)
        if options["standardise"]:
            self.unit, self.told_unit = self.source[1], self.statistics(self.told(clean))[1]

    def features(self, theta: Array, x: Array) -> Array:
        if self.kind == "batch":
            return np.tanh(by_hand_batch.features(theta, x))
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * theta[:4] + theta[4:]

    def told(self, x: Array) -> Array:
        if self.kind == "batch":
            stored = by_hand_batch.MEAN, by_hand_batch.VARIANCE
            return np.tanh(by_hand_batch.features(by_hand.GAMMA_BETA, x, *stored))
        return self.features(by_hand.GAMMA_BETA, x)

    @staticmethod
    def statistics(z: Array) -> tuple[Array, Array]:
        return z.mean(0), z.std(0, ddof=1)

    def distance(self, a: tuple[Array, Array], b: Any, unit: Array) -> float:
        means, stds = (a[0] - b[0]) / unit, (a[1] - b[1]) / unit
        return float(np.sqrt((means**2).sum()) + self.o["spread_weight"] * np.sqrt((stds**2).sum()))

    def gap(self, theta: Array, x: Array) -> float:
        return self.distance(self.statistics(self.features(theta, x)), self.source, self.unit)

    def step(self, x: Array) -> tuple[Array, bool]:
        o, start, signature = self.o, by_hand.GAMMA_BETA, self.statistics(self.told(x))
        known = False
        if self.elements:
            near = [math.exp(-self.distance(signature, e, self.told_unit) / o["temperature"]) for e in self.elements]
            weights = [value / sum(near) for value in near]
            mix = sum(w * e[2] for w, e in zip(weights, self.elements, strict=True))
            known = self.gap(mix, x) < o["known_below"] * self.gap(start, x)
        theta = (mix if known else start).copy()
        m, v = np.zeros(8), np.zeros(8)
        for t in range(1, (o["steps_known"] if known else o["steps_new"]) + 1):
            last = theta.copy()
            g = by_hand.slope(lambda p: self.gap(p, x), theta)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            theta = theta * (1 - o["lr"] * o["decay"])
            theta -= o["lr"] * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        if not known:
            self.elements.append([*signature, theta])
        else:
            prompted = o["element_stats"] == "prompted" or (o["element_stats"] == "auto" and self.kind != "batch")
            mean, std = self.statistics(self.features(last, x)) if prompted else signature
            for w, element in zip(weights, self.elements, strict=True):
                element[0] = element[0] + o["rate"] * w * (mean - element[0])
                element[1] = element[1] + o["rate"] * w * np.maximum(std - element[1], 0)
                element[2] = element[2] + o["rate"] * w * (theta - element[2])
        return self.features(last, x) @ by_hand.HEAD.T, known


@pytest.mark.parametrize("kind", ["layer", "batch"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"element_stats": "raw", "steps_known": 3, "decay": 0.0},
        {"element_stats": "prompted", "standardise": False, "spread_weight": 0.3, "rate": 0.6},
    ],
    ids=["default", "raw", "prompted"],
)
def test_steps_by_hand(kind: str, changes: dict[str, Any]) -> None:
    options = {
        "standardise": True, "spread_weight": 1.0, "temperature": 0.5, "known_below": 0.9, "lr": 0.03, "decay": 0.2,
        "steps_new": 4, "steps_known": 1, "rate": 0.999, "element_stats": "auto", **changes,
    }  # fmt: skip
    adapter, hand = fitted(kind, **options), Hand(kind, **options)
    branches = []
    for seed, domain in enumerate((0, 0, 1, 0, 1, 1, 0)):
        x = met(domain, seed)
        logits, known = hand.step(numbers(x))
        assert np.allclose(numbers(adapter(x)), logits, atol=2e-3)
        branches.append(known)
        assert float(adapter.logged["known"]) == known and int(adapter.coreset.count) == len(hand.elements)
        for k, element in enumerate(hand.elements):
            for held, value in zip(("means", "stds", "prompts"), element, strict=True):
                assert np.allclose(numbers(getattr(adapter.coreset, held)[k]), value, atol=1e-3), (held, k)
    assert not branches[0] and len(hand.elements) >= 2 and sum(branches) >= 3, branches
    assert not adapter.coreset.prompts[len(hand.elements) :].any()


def coreset(**options: Any) -> dpcore.Coreset:
    """Two elements of three slots, two features, a prompt of three numbers."""
    held = dpcore.Coreset(3, 2, torch.tensor([7.0, 8.0, 9.0]), **{"spread_weight": 1.0, **options})
    yes = torch.tensor(True)
    held.append(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0, 2.0]), yes)
    held.append(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0, 4.0]), yes)
    return held


def test_weights_of_elements_in_numbers() -> None:
    held = coreset()
    held.temperature.fill_(2.0)
    weights, prompt = held.mix(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
    near, far = math.exp(-2 / 2), math.exp(-5 / 2)  # |(0, 0)| + |(0, 2)|, |(3, 4)| + 0
    w = near / (near + far)
    assert weights.tolist() == pytest.approx([w, 1 - w, 0.0])
    assert prompt.tolist() == pytest.approx([w, 1 - w, 2 * w + 4 * (1 - w)])
    held.unit.copy_(torch.tensor([1.0, 2.0]))
    weights, _ = held.mix(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
    near, far = math.exp(-1 / 2), math.exp(-math.sqrt(13) / 2)
    assert weights.tolist() == pytest.approx([near / (near + far), far / (near + far), 0.0])


def test_without_elements_the_mix_is_the_initial_prompt() -> None:
    held = dpcore.Coreset(3, 2, torch.tensor([7.0, 8.0, 9.0]), 1.0)
    weights, prompt = held.mix(torch.zeros(2), torch.ones(2))
    assert weights.tolist() == [0.0, 0.0, 0.0] and prompt.tolist() == [7.0, 8.0, 9.0]


def test_weights_of_far_elements_are_finite() -> None:
    held = coreset()
    held.temperature.fill_(1e-6)
    weights, prompt = held.mix(torch.tensor([1e6, 1e6]), torch.ones(2))
    assert weights.tolist() == [0.0, 1.0, 0.0] and torch.isfinite(prompt).all()


def test_elements_follow_in_numbers_and_spreads_only_grow() -> None:
    held = coreset()
    weights = torch.tensor([0.75, 0.25, 0.0])
    batch = torch.tensor([4.0, 8.0]), torch.tensor([0.5, 5.0]), torch.tensor([5.0, 0.0, 0.0])
    before = state(held)
    held.follow(weights, *(value * torch.nan for value in batch), 0.8, torch.tensor(False))
    assert all(torch.equal(value, before[key]) for key, value in held.state_dict().items())
    held.follow(weights, *batch, 0.8, torch.tensor(True))
    assert torch.allclose(held.means[:2], torch.tensor([[2.4, 4.8], [3.2, 4.8]]))
    assert torch.allclose(held.stds[:2], torch.tensor([[1.0, 3.4], [1.0, 3.4]]))
    assert torch.allclose(held.prompts[:2], torch.tensor([[3.4, 0.0, 0.8], [1.0, 0.8, 3.2]]))
    assert not held.means[2].any() and not held.prompts[2].any()


def test_distance_adds_norms_and_silent_features_have_a_slope() -> None:
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0])
    assert float(dpcore.distance(a, 2 * b, torch.zeros(2), b, torch.ones(2), 0.5)) == pytest.approx(5 + 0.5 * 2**0.5)
    z = torch.zeros(8, 2, requires_grad=True)  # silent, and exactly where it should be
    mean, std = dpcore.moments(z)
    loss = dpcore.distance(mean, std, torch.zeros(2), torch.ones(2), torch.ones(2), 1.0)
    assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()
    assert dpcore.moments(torch.ones(1, 2))[1].tolist() == pytest.approx([0.0, 0.0], abs=1e-5)


def test_a_full_set_takes_every_batch_for_known() -> None:
    adapter = fitted(capacity=2, known_below=0.0)
    for seed in range(4):
        adapter(met(seed % 2, seed))
        assert int(adapter.coreset.count) == min(2, seed + 1)
        assert float(adapter.logged["known"]) == (seed >= 2)
    assert int(adapter.optimizer().count) == 1 and adapter.skipped == 0


def test_how_often_the_networks_run() -> None:
    adapter = fitted("batch", steps_new=5, known_below=100.0)
    runs = {"source": 0, "witness": 0, "student": 0}
    for name in runs:
        body = getattr(adapter, name).body
        body.register_forward_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
    adapter(met(0))
    assert runs == {"source": 1, "witness": 1, "student": 6}
    adapter(met(0))  # known: the pass that tries the mix is the one that learns
    assert runs == {"source": 2, "witness": 2, "student": 7}


@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_nothing_but_the_set_is_kept_between_batches(kind: str) -> None:
    adapter, other = fitted(kind), fitted(kind)
    for seed in range(3):
        adapter(met(seed % 2, seed))
    assert torch.equal(torch.cat([p.detach().flatten() for p in adapter.optimizer().targets]), adapter.coreset.initial)
    assert not any(value.requires_grad for value in adapter.coreset.buffers())
    other.coreset.load_state_dict(adapter.coreset.state_dict())
    for seed in range(2):
        assert torch.equal(adapter(met(seed, 9)), other(met(seed, 9)))


def test_returned_are_the_logits_before_the_last_step() -> None:
    adapter, other = fitted(steps_new=1), fitted(steps_new=2)
    x = met(0)
    assert torch.allclose(adapter(x), by_hand.network()(x), atol=1e-6)
    seen = other(x)
    assert not torch.allclose(seen, by_hand.network()(x), atol=1e-2)
    # after one of two steps: what the set of the first holds
    assert torch.allclose(adapter.predict(x), seen, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_short_batches_take_the_mix_and_teach_nothing(kind: str) -> None:
    adapter = fitted(kind)
    plain = sf.adapt(network(kind), "bn")
    for rows in (1, 3, 15):
        x = met(0, rows=rows)
        assert torch.allclose(adapter(x), plain(x), atol=1e-6)  # no element yet
    assert int(adapter.coreset.count) == 0
    adapter(met(0))
    before = state(adapter)
    for rows in (1, 3, 15):
        x = met(0, 1, rows)
        logits = adapter(x)
        assert torch.isfinite(logits).all() and not torch.allclose(logits, plain(x), atol=1e-2)
        assert torch.equal(logits, adapter.predict(x)) and torch.equal(logits, adapter.export()(x))
    assert not [key for key, value in state(adapter).items() if not torch.equal(value, before[key])]
    learner = fitted(kind, least_images=2)
    assert torch.isfinite(learner(met(0, rows=2))).all() and int(learner.coreset.count) == 1


def test_one_of_two_elements_is_chosen_by_the_batch_not_by_the_last_one() -> None:
    adapter = fitted(temperature=0.01, known_below=0.0, lr=0.3)
    first, second = met(0, 1), met(1, 2)
    seen = [adapter(x) for x in (first, second)]
    one, two = adapter.predict(first), adapter.predict(second)
    adapter.coreset.count.fill_(1)
    assert torch.allclose(adapter.predict(first), one, atol=1e-5)
    assert not torch.allclose(adapter.predict(second), two, atol=1e-2) and len(seen) == 2


def test_a_batch_that_is_not_finite_changes_nothing() -> None:
    adapter = fitted(check_input="off")
    adapter(met(0))
    before = state(adapter)
    x = met(0, 1)
    x[2] = float("nan")
    logits = adapter(x)
    assert torch.isfinite(logits).all(1).tolist() == [row != 2 for row in range(ROWS)]
    assert torch.allclose(logits[3:], by_hand.network()(x)[3:], atol=1e-6)
    assert not [key for key, value in state(adapter).items() if not torch.equal(value, before[key])]
    assert torch.isfinite(adapter(met(1))).all() and adapter.skipped == 0


def test_a_bad_batch_accepted_for_later_changes_nothing() -> None:
    adapter = fitted(check_input="deferred")
    adapter(met(0))
    before = state(adapter)
    x = met(0, 1)
    x[2, 1] = float("inf")
    assert torch.isfinite(adapter(x)).all()
    assert not [key for key, value in state(adapter).items() if not torch.equal(value, before[key])]


@pytest.mark.filterwarnings("ignore:.*was not finite")
def test_what_was_not_learned_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = fitted(known_below=100.0)
    adapter(met(0))
    before = state(adapter.coreset)
    true = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: tuple(g * torch.nan for g in true(*a, **k)))
    adapter(met(0, 1))
    assert float(adapter.logged["known"]) == 1 and adapter.skipped == 1
    adapter.config = type(adapter.config)(**{**vars(adapter.config), "known_below": 0.0})
    adapter(met(1, 2))
    assert float(adapter.logged["known"]) == 0 and adapter.skipped == 4
    assert not [key for key, value in state(adapter.coreset).items() if not torch.equal(value, before[key])]


@pytest.mark.filterwarnings("ignore:.*was not finite")
@pytest.mark.parametrize("known", [True, False])
def test_steps_that_end_beyond_all_numbers_are_not_stored(known: bool) -> None:
    adapter = fitted(known_below=100.0 * known, steps_new=2, steps_known=2)
    adapter(met(0))
    before = state(adapter.coreset)
    adapter.optimizer().lr = 1e38
    adapter(met(0, 1))
    assert float(adapter.logged["known"]) == known and adapter.skipped == 1
    assert not [key for key, value in state(adapter.coreset).items() if not torch.equal(value, before[key])]


def test_reset_empties_the_set_and_a_saved_set_goes_on(tmp_path: Path) -> None:
    adapter = fitted("batch")
    fresh = state(adapter)
    stream = [met(seed % 2, seed) for seed in range(6)]
    for x in stream[:4]:
        adapter(x)
    assert int(adapter.coreset.count) > 0
    adapter.save(tmp_path / "a.pt")
    again = sf.load(tmp_path / "a.pt", network("batch"))
    assert torch.equal(again.coreset.prompts, adapter.coreset.prompts)
    assert all(torch.equal(again(x), adapter(x)) for x in stream[4:])
    for which in (adapter, again):
        which.reset()
        assert not [key for key, value in state(which).items() if not torch.equal(value, fresh[key])]


def test_source_statistics_are_of_sure_images_up_to_a_number() -> None:
    adapter = sf.adapt(by_hand.network(), "dpcore", source_entropy=0.25, source_images=20).fit_source(source())
    clean = np.concatenate([numbers(x) for x, _ in source()])
    uncertain = by_hand.entropies(by_hand.logits(by_hand.GAMMA_BETA, clean))
    sure = uncertain < 0.25 * math.log(3)
    assert 20 < sure.sum() < len(clean) - 20 and (sure != (uncertain < 0.25))[: np.flatnonzero(sure)[19]].any()
    z = Hand("layer", standardise=False).features(by_hand.GAMMA_BETA, clean)[sure][:20]
    assert np.allclose(numbers(adapter.source_mean), z.mean(0), atol=1e-5)
    assert np.allclose(numbers(adapter.source_std), z.std(0, ddof=1), atol=1e-5)
    with pytest.raises(ConfigError, match="source_entropy"):
        sf.adapt(by_hand.network(), "dpcore", source_entropy=1e-9).fit_source(source())


def test_source_images_that_are_not_finite_do_not_count() -> None:
    good, (images, labels), _ = source()
    adapter = sf.adapt(by_hand.network(), "dpcore", check_input="off")
    adapter.fit_source([good, (images * torch.nan, labels)])
    other = sf.adapt(by_hand.network(), "dpcore").fit_source([good])
    assert torch.equal(adapter.source_mean, other.source_mean) and torch.equal(adapter.unit, other.unit)
    assert torch.equal(adapter.coreset.temperature, other.coreset.temperature)


def test_source_features_that_are_silent_are_no_fine_measure() -> None:
    net = by_hand.network()
    with torch.no_grad():
        net[0].weight[2] = 0.0
    adapter = sf.adapt(net, "dpcore", source_entropy=2.0, steps_new=2).fit_source(source())
    std = adapter.source_std
    assert float(std[2]) < 1e-5 and torch.equal(adapter.unit[[0, 1, 3]], std[[0, 1, 3]])
    assert float(adapter.unit[2]) == pytest.approx(0.1 * float(std.mean()))
    assert torch.isfinite(adapter(met(0))).all() and int(adapter.coreset.count) == 1 and adapter.skipped == 0


def test_the_temperature_is_the_usual_distance_of_two_source_batches() -> None:
    adapter, given = fitted(), fitted(temperature=3.0)
    assert float(given.coreset.temperature) == 3.0
    draw = np.random.default_rng(0)
    hand = Hand("layer", standardise=True, spread_weight=1.0)
    z = hand.told(np.concatenate([numbers(x) for x, _ in source()]))

    def batch() -> tuple[Array, Array]:
        return hand.statistics(z[draw.integers(0, len(z), ROWS)])

    usual = np.median([hand.distance(batch(), batch(), hand.told_unit) for _ in range(400)])
    assert float(adapter.coreset.temperature) == pytest.approx(usual, rel=0.15)
    same = [(by_hand.inputs(1).repeat(ROWS, 1), torch.zeros(ROWS))]
    still = sf.adapt(by_hand.network(), "dpcore", source_entropy=2.0, steps_new=2).fit_source(same)
    assert float(still.coreset.temperature) > 0 and all(torch.isfinite(still(met(0, seed))).all() for seed in range(3))
    one = [(torch.cat([x for x, _ in source()]), torch.zeros(3 * ROWS))]
    large = sf.adapt(by_hand.network(), "dpcore", source_entropy=2.0).fit_source(one)
    assert float(large.coreset.temperature) == pytest.approx(usual / math.sqrt(3), rel=0.2)


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_on_tiny_networks_a_domain_met_before_is_known_and_nearer_to_the_source(kind: str) -> None:
    adapter = make("dpcore", tiny_net(kind), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    known, ratios = [], []
    for domain in (0, 0, 1, 1, 0, 0, 1, 1):
        x, _ = synthetic_batch(64, generator)
        noisy = (x + 0.5 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
        assert torch.isfinite(adapter(shifted(x) if domain else noisy)).all()
        known.append(float(adapter.logged["known"]))
        ratios.append(float(adapter.logged["gap_of_mix"] / adapter.logged["gap"]))
    assert known[0] == 0 and sum(known[4:]) >= 3 and np.mean(ratios[4:]) < 0.8
    assert 1 <= int(adapter.coreset.count) <= 5


@pytest.mark.filterwarnings("ignore:.*no norm layers")
def test_a_network_without_norm_layers_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    adapter = sf.adapt(net, "dpcore", source_entropy=2.0).fit_source(source())
    for rows in (ROWS, 3, ROWS):
        x = by_hand.inputs(rows)
        assert torch.allclose(adapter(x), net(x), atol=1e-6) and torch.allclose(adapter.predict(x), net(x), atol=1e-6)


# -- prompt tokens ----------------------------------------------------------------------------------------------------


class Vit(nn.Module):
    """Patches of 6, a class token, positions, two blocks; the head reads the class token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 6, 6)
        self.start, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.Sequential(TransformerBlock(8, 2), TransformerBlock(8, 2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def tokens(self, x: Tensor) -> Tensor:
        return torch.cat([self.start.expand(len(x), -1, -1), self.patches(x).flatten(2).mT], 1) + self.places

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x)))[:, 0])

    def prompted(self, x: Tensor, prompt: Tensor) -> Tensor:
        """The class token's feature, with a prompt behind the class token."""
        tokens = self.tokens(x)
        tokens = torch.cat([tokens[:, :1], prompt[None].repeat(len(x), 1, 1), tokens[:, 1:]], 1)
        return self.norm(self.blocks(tokens))[:, 0]


def vit_adapter(net: nn.Module, **options: Any) -> Adapter:
    return make("dpcore", net, preset="vit", **{"source_entropy": 2.0, **options})


def test_tokens_against_a_slow_version() -> None:
    net = Vit().eval().requires_grad_(False)
    adapter = vit_adapter(net, tokens=3, steps_new=6, known_below=0.95)
    initial = adapter.coreset.initial.view(3, 8).clone()
    bound = math.sqrt(6 / (3 * 6 * 6 + 8))
    assert initial.abs().max() <= bound and initial.abs().max() > 0.8 * bound
    assert torch.equal(initial.flatten(), adapter.optimizer().targets[0].flatten()) and adapter.witness is None

    generator = torch.Generator().manual_seed(9)
    clean = torch.cat([synthetic_batch(16, generator)[0] for _ in range(6)])
    nothing = torch.zeros(0, 8)
    source_std, source_mean = torch.std_mean(net.prompted(clean, nothing), 0)

    def statistics(x: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
        std, mean = torch.std_mean(net.prompted(x, prompt), 0)
        return mean, std

    def gap(mean: Tensor, std: Tensor) -> Tensor:
        return (mean - source_mean).norm() + (std - source_std).norm()

    elements: list[list[Tensor]] = []
    branches = []
    stream = batches(6)
    for number, x in enumerate((stream[0], stream[1], 1 - stream[2], stream[3], 1 - stream[4])):
        raw = statistics(x, nothing)
        known = False
        if elements:
            scores = [-((raw[0] - m).norm() + (raw[1] - s).norm()) / 3.0 for m, s, _ in elements]
            w = torch.stack(scores).softmax(0)
            mix = torch.stack([w[j] * e[2] for j, e in enumerate(elements)]).sum(0)
            known = bool(gap(*statistics(x, mix)) < 0.95 * gap(*raw))
        prompt = nn.Parameter((mix if known else initial).clone())
        optimizer = torch.optim.AdamW([prompt], lr=0.1, weight_decay=0.01)
        for _ in range(1 if known else 6):
            logits, found = net.head(net.prompted(x, prompt)).detach(), statistics(x, prompt)
            optimizer.zero_grad()
            gap(*found).backward()
            optimizer.step()
        prompt = prompt.detach()
        if known:
            for weight, element in zip(w, elements, strict=True):
                element[0] = element[0] + 0.999 * weight * (found[0].detach() - element[0])
                element[1] = element[1] + 0.999 * weight * (found[1].detach() - element[1]).clamp(min=0)
                element[2] = element[2] + 0.999 * weight * (prompt - element[2])
        else:
            elements.append([*raw, prompt])
        branches.append(known)
        assert torch.allclose(adapter(x), logits, atol=1e-3), number
        assert float(adapter.logged["known"]) == known
        for j, (mean, std, kept) in enumerate(elements):
            assert torch.allclose(adapter.coreset.means[j], mean, atol=1e-3)
            assert torch.allclose(adapter.coreset.stds[j], std, atol=1e-3)
            assert torch.allclose(adapter.coreset.prompts[j].view(3, 8), kept, atol=2e-3), (number, j)
    assert not branches[0] and sum(branches) >= 2, branches
    assert adapter.trainable_share() == pytest.approx(24 / sum(p.numel() for p in net.parameters()))


def test_without_elements_tokens_are_not_seen() -> None:
    net = Vit().eval()
    adapter = vit_adapter(net)
    x = batches(1)[0]
    with torch.no_grad():
        assert torch.allclose(adapter.predict(x), net(x), atol=1e-6)
        assert torch.allclose(adapter(x[:3]), net(x[:3]), atol=1e-6)
        adapter(x)
        assert not torch.allclose(adapter.predict(x), net(x), atol=1e-3)
        assert torch.equal(adapter.export()(x), adapter.predict(x))


class Inside(nn.Module):
    """Positions added inside the encoder, blocks in a list that give tuples and are told something by name."""

    class Block(TransformerBlock):
        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            return super().forward(scale * x), None

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.zeros(1, 9, 8))
            self.drop, self.layers = nn.Dropout(), nn.ModuleList([Inside.Block(8, 2), Inside.Block(8, 2)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(x + self.places)
            for layer in self.layers:
                x = layer(x, scale=0.9)[0]
            return x

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.encoder = nn.Conv2d(3, 8, 4, 4), self.Encoder()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).mT).mean(1))


@pytest.mark.parametrize(("net", "place"), [(Vit, "blocks"), (Inside, "encoder.layers.0")])
def test_the_prompt_stands_before_the_first_block(net: Callable[[], nn.Module], place: str) -> None:
    adapter = vit_adapter(net().eval(), steps_new=2)
    found = [name for name, m in adapter.student.body.named_modules() if isinstance(m, Prompted)]
    assert found == [place]
    assert [name for name, p in adapter.student.named_parameters() if p.requires_grad] == [f"body.{place}.prompt"]
    for x in batches(3):
        assert torch.isfinite(adapter(x)).all()
    assert int(adapter.coreset.count) >= 1 and adapter.skipped == 0


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_networks_without_attention_have_no_place_for_tokens(kind: str) -> None:
    with pytest.raises(ModelError, match="prompt='norm'"):
        make("dpcore", tiny_net(kind), prompt="tokens")


def test_tokens_reset_and_resume(tmp_path: Path) -> None:
    net = Vit().eval()
    adapter = vit_adapter(net, steps_new=3)
    fresh, stream = state(adapter), batches(4)
    outputs = [adapter(x) for x in stream]
    adapter.reset()
    assert not [key for key, value in state(adapter).items() if not torch.equal(value, fresh[key])]
    for x in stream[:2]:
        adapter(x)
    adapter.save(tmp_path / "a.pt")
    again = sf.load(tmp_path / "a.pt", net)
    assert all(torch.equal(again(x), y) for x, y in zip(stream[2:], outputs[2:], strict=True))


def test_presets() -> None:
    config = dpcore.DpcoreConfig
    vit = config.for_("vit")
    assert (vit.prompt, vit.tokens, vit.lr, vit.temperature, vit.standardise) == ("tokens", 8, 0.1, 3.0, False)
    assert vit.source_entropy * math.log(1000) == pytest.approx(math.log(1000) / 2 - 1, abs=1e-3)
    assert config.for_("cifar100").source_entropy * math.log(100) == pytest.approx(math.log(100) / 2 - 1, abs=1e-3)
    assert config.for_("vit_ccc").lr == 0.01 and config.for_("imagenet").prompt == "norm"
