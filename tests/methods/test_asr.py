"""ASR's watch, partial resets and penalty against numbers worked out in NumPy."""

import math
from dataclasses import dataclass, field

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.methods.asr import AsrConfig
from slomofast.testing import batches, tiny_net

E0 = 0.4 * math.log(3)
# a redundancy margin of 1 leaves nobody out
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "redundancy_margin": 1.0}
NEVER = {"baseline_start": 1e-3, "baseline_rate": 0.0}  # an entropy is never negative
ALWAYS = {"baseline_start": 10.0}  # ... and never above ln(classes)


def asr(**options: object) -> sf.Adapter:
    return sf.adapt(by_hand.network(), "asr", **{**PLAIN, "lr": 0.1, **options})


@dataclass
class ByHand:
    """The whole method in float64: tensors are the four scales and the four shifts."""

    lr: float
    start: float
    rate: float
    slope: float
    weight: float
    theta: np.ndarray = field(default_factory=by_hand.GAMMA_BETA.copy)
    sums: tuple[np.ndarray, np.ndarray] = (np.zeros(8), np.zeros(8))
    means: tuple[np.ndarray, np.ndarray] | None = None
    count: int = 0
    pull: float = 0.0
    kept_share: float = 1.0
    drawn: float = 0.0

    def __post_init__(self) -> None:
        self.baseline = math.log(self.start * 3)

    def step(self, x: np.ndarray) -> np.ndarray:
        z = by_hand.logits(self.theta, x)
        h = by_hand.entropies(z)
        kept, weight = h < E0, np.exp(E0 - h)

        def entropy(t: np.ndarray) -> float:
            return float((weight * by_hand.entropies(by_hand.logits(t, x)))[kept].mean())

        def whole(t: np.ndarray) -> float:
            return entropy(t) + self.pull * float((self.means[0] * (t - self.means[1]) ** 2).sum())

        g = by_hand.slope(entropy, self.theta)
        self.sums = (self.sums[0] + g**2, self.sums[1] + self.theta)
        self.count += 1
        both = g if self.means is None else by_hand.slope(whole, self.theta)
        self.drawn = self.lr * float(np.abs(both - g).max())
        self.theta = self.theta - self.lr * both
        spread = by_hand.entropies(z.mean(0))
        phi = (by_hand.logits(by_hand.GAMMA_BETA, x).argmax(1) != z.argmax(1)).mean()
        mu, self.pull, self.kept_share = self.rate * phi + 1 - self.rate, self.weight * phi**2, 1.0
        if spread < self.baseline:
            means = tuple(s / self.count for s in self.sums)
            if self.means is not None:
                means = tuple(0.9 * old + 0.1 * new for old, new in zip(self.means, means, strict=True))
            self.means, self.sums, self.count = means, (np.zeros(8), np.zeros(8)), 0
            self.kept_share = max(0.5 - self.slope * (self.baseline - spread), 0.0)
            first = 4 * math.ceil(self.kept_share * 2)  # of the two tensors, those with index < share * 2 stay
            self.theta = np.concatenate([self.theta[:first], by_hand.GAMMA_BETA[first:]])
            self.baseline = math.log(self.start * 3)
        else:
            self.baseline = mu * self.baseline + (1 - mu) * spread
        return z


def test_twelve_steps_by_hand() -> None:
    names = {"baseline_start": 0.9, "baseline_rate": 0.6, "reset_slope": 4.0, "penalty_weight": 3000.0}
    adapter, hand = asr(lr=0.5, **names), ByHand(0.5, *names.values())
    kept, drawn = [], []
    for seed in range(12):
        x = by_hand.inputs(24, seed=seed)
        expected = hand.step(x.numpy().astype(float))
        kept.append(hand.kept_share)
        drawn.append(hand.drawn)
        assert np.allclose(adapter(x).numpy(), expected, atol=1e-4), "logits are those from before the update"
        assert np.allclose(by_hand.weights(adapter.student), hand.theta, atol=1e-5)
        assert float(adapter.baseline) == pytest.approx(hand.baseline, abs=1e-5)
        assert float(adapter.pull) == pytest.approx(hand.pull, rel=1e-5)
        assert float(adapter.logged["reset"]) == (hand.kept_share < 1)
        assert np.allclose(adapter.fisher_sum, hand.sums[0], atol=1e-5)
        assert np.allclose(adapter.theta_sum, hand.sums[1], atol=1e-5) and int(adapter.batches) == hand.count
        if hand.means is not None:
            assert np.allclose(adapter.fisher_mean, hand.means[0], atol=1e-5)
            assert np.allclose(adapter.theta_mean, hand.means[1], atol=1e-5)
    assert kept.count(0.0) >= 1, "a full reset"
    assert sum(0 < share <= 0.5 for share in kept) >= 1 and kept.count(1.0) >= 4, "a partial one, and none"
    assert max(drawn) > 0.02, "the penalty must have drawn"


def test_without_a_reset_it_is_eta_bit_for_bit() -> None:
    eta, same = sf.adapt(tiny_net(), "eta"), sf.adapt(tiny_net(), "asr", **NEVER)
    for x in batches(5):
        assert torch.equal(same(x), eta(x))
    assert not bool(same.remembers) and int(same.batches) == 5
    assert torch.equal(same.average, eta.average)


def test_the_trigger_is_strict() -> None:
    x = by_hand.inputs()
    spread = -asr_after(x, **NEVER).logged["concentration"]
    for baseline, resets in ((spread, 0.0), (torch.nextafter(spread, torch.tensor(9.0)), 1.0)):
        adapter = asr().prepare(x)
        adapter.baseline.copy_(baseline)
        adapter(x)
        assert float(adapter.logged["reset"]) == resets


def asr_after(x: torch.Tensor, **options: object) -> sf.Adapter:
    adapter = asr(**options)
    adapter(x)
    return adapter


def test_a_reset_clears_what_the_method_carries_and_keeps_what_it_remembers() -> None:
    adapter = sf.adapt(by_hand.network(), "asr", lr=0.1, **ALWAYS)  # Adam, whose moments must go
    adapter(by_hand.inputs())
    assert np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA, atol=1e-7), "everything went back"
    optimizer = adapter.optimizer_student
    assert not any(moment.any() for moment in (optimizer.first, optimizer.second, optimizer.count))
    assert not bool(adapter.started) and not adapter.average.any()
    assert not adapter.fisher_sum.any() and not adapter.theta_sum.any() and int(adapter.batches) == 0
    assert float(adapter.baseline) == pytest.approx(math.log(30))
    assert bool(adapter.remembers) and adapter.fisher_mean.any()
    assert np.allclose(adapter.theta_mean, by_hand.GAMMA_BETA, atol=1e-6)
    adapter.reset()
    assert not bool(adapter.remembers) and not adapter.fisher_mean.any() and float(adapter.pull) == 0


class Three(nn.Module):
    """Three layers, six tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.fc = nn.Sequential(*[nn.LayerNorm(4) for _ in range(3)]), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norms(x))


@pytest.mark.parametrize(("share", "stay"), [(0.0, 6), (0.5, 3), (0.6, 3), (0.9, 1), (1.0, 0)])
def test_the_boundary_lies_between_tensors_not_layers(share: float, stay: int) -> None:
    torch.manual_seed(0)
    source = Three()
    options = {**ALWAYS, "reset_share": share, "reset_slope": 0.0, "entropy_margin": 2.0}
    adapter = sf.adapt(source, "asr", lr=0.1, **options)
    adapter(by_hand.inputs())
    now = [p.detach() for p in adapter.student.parameters() if p.requires_grad]
    moved = [not torch.equal(p, q) for p, q in zip(now, source.norms.parameters(), strict=True)]
    assert moved == [True] * stay + [False] * (6 - stay)
    assert float(adapter.logged["share_reset"]) == pytest.approx((6 - stay) / 6)


def test_an_empty_filter_moves_nothing_but_is_counted() -> None:
    adapter = asr(momentum=0.9, baseline_rate=0.0, baseline_start=1e-3)
    adapter(by_hand.inputs())
    adapter.pull.fill_(5.0)
    adapter.fisher_mean.fill_(1.0)  # a penalty that would move the weights
    before, fisher = by_hand.weights(adapter.student), adapter.fisher_sum.clone()
    total = adapter.theta_sum.clone()
    uncertain = torch.zeros(5, 4)  # LayerNorm of a constant is zero: logits of the shift alone
    assert (by_hand.entropies(by_hand.logits(before, uncertain.numpy())) > E0).all()
    adapter(uncertain)
    assert np.array_equal(by_hand.weights(adapter.student), before) and adapter.skipped == 0
    assert torch.equal(adapter.fisher_sum, fisher) and int(adapter.batches) == 2
    assert np.allclose(adapter.theta_sum - total, before, atol=1e-6)


@pytest.mark.parametrize("options", [{}, NEVER, ALWAYS])
def test_one_image_equal_images_and_a_short_batch_stay_finite(options: dict[str, float]) -> None:
    adapter = asr(**options)
    for x in (
        by_hand.inputs(),
        by_hand.inputs(1),
        by_hand.inputs(1).repeat(6, 1),
        by_hand.inputs(3),
        torch.zeros(1, 4),
    ):
        assert torch.isfinite(adapter(x)).all()
    for name, value in adapter.state_dict().items():
        assert not isinstance(value, torch.Tensor) or torch.isfinite(value.float()).all(), name


def test_the_source_network_is_asked_under_the_batch_s_statistics_and_stays() -> None:
    adapter, x = sf.adapt(by_hand_batch.network(), "asr", lr=0.5, entropy_margin=2.0, **NEVER), by_hand.inputs(24)
    for _ in range(6):
        z = by_hand_batch.numbers(adapter(x))
    expected = by_hand_batch.logits(by_hand.GAMMA_BETA, by_hand_batch.numbers(x))
    assert np.allclose(by_hand_batch.numbers(adapter.anchor(x)), expected, atol=1e-4)
    share = float((expected.argmax(1) != z.argmax(1)).mean())
    assert share > 0 and float(adapter.logged["disagreement"]) == pytest.approx(share)
    assert float(adapter.pull) == pytest.approx(5.0 * share**2)


def test_a_bad_batch_under_the_deferred_check_leaves_everything_alone() -> None:
    adapter = asr(check_input="deferred", **ALWAYS)
    adapter(by_hand.inputs())
    before = {k: v.clone() for k, v in adapter.state_dict().items() if isinstance(v, torch.Tensor)}
    bad = by_hand.inputs(seed=1)
    bad[0, 0] = float("nan")
    adapter(bad)
    changed = [k for k, v in before.items() if not torch.equal(v, adapter.state_dict()[k])]
    assert not changed
    with pytest.raises(sf.InputError):
        adapter.check()


def test_a_model_without_norm_layers_predicts() -> None:
    net = nn.Linear(4, 3)
    with pytest.warns(UserWarning, match="no norm layers"):
        adapter = sf.adapt(net, "asr", probe=torch.rand(2, 4))
    x = by_hand.inputs()
    assert torch.allclose(adapter(x), net(x), atol=1e-6)


def test_presets() -> None:
    assert AsrConfig.for_("imagenet").lr == 2.5e-4 and AsrConfig.for_("imagenet").baseline_rate == 0.15
    easy, hard = AsrConfig.for_("transformer"), AsrConfig.for_("transformer_hard")
    assert (easy.baseline_rate, easy.reset_slope, hard.baseline_rate, hard.reset_slope) == (0.99, 50, 0.9995, 0.1)
    assert easy.baseline_start == hard.baseline_start == 0.005 and easy.optimizer == "sgd"
