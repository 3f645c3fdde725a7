"""LCoTTA's queue, subspace and projected steps against numbers worked out in NumPy."""

import math
from dataclasses import dataclass, field

import by_hand
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.methods.lcotta import LcottaConfig, Subspace, principal_axes
from slomofast.testing import batches, tiny_net

E0 = 0.4 * math.log(3)
# a redundancy margin of 1 leaves nobody out
EARLY = {"redundancy_margin": 1.0, "components": 3, "queue": 4, "interval": 2}
HOST = torch.device("cpu")


def lcotta(**options: object) -> sf.Adapter:
    return sf.adapt(by_hand.network(), "lcotta", **{**EARLY, "lr": 0.1, **options})


@dataclass
class ByHand:
    """The whole method in float64, with the axes from a singular value decomposition."""

    lr: float
    components: int
    queue: int
    interval: int
    theta: np.ndarray = field(default_factory=by_hand.GAMMA_BETA.copy)
    velocity: np.ndarray = field(default_factory=lambda: np.zeros(8))
    rows: list[np.ndarray] = field(default_factory=list)
    count: int = 0
    share: float = 1.0

    def step(self, x: np.ndarray) -> np.ndarray:
        z = by_hand.logits(self.theta, x)
        h = by_hand.entropies(z)
        kept, weight = h < E0, np.exp(E0 - h)
        assert 0 < kept.sum() < len(x)
        g = by_hand.slope(lambda t: float((weight * by_hand.entropies(by_hand.logits(t, x)))[kept].mean()), self.theta)
        if self.count > 0 and self.count % self.interval == 0:
            self.rows = [*self.rows, g][-self.queue :]
        inside = g
        if len(self.rows) >= self.components:
            rows = np.stack(self.rows)
            _, sizes, axes = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
            rank = min(self.components, len(rows) - 1)
            assert sizes[rank - 1] > 1e-3, "the subspace must be well defined"
            inside = axes[:rank].T @ (axes[:rank] @ g)
        self.share = float((inside**2).sum() / (g**2).sum())
        self.velocity = 0.9 * self.velocity + inside
        self.theta = self.theta - self.lr * (inside + 0.9 * self.velocity)  # Nesterov
        self.count += 1
        return z


def test_fourteen_steps_by_hand() -> None:
    adapter, hand, shares = lcotta(lr=0.02), ByHand(0.02, components=3, queue=4, interval=2), []
    for seed in range(14):
        x = by_hand.inputs(16, seed=seed)
        expected = hand.step(x.numpy().astype(float))
        assert np.allclose(adapter(x).numpy(), expected, atol=1e-4), "logits are those from before the update"
        assert np.allclose(by_hand.weights(adapter.student), hand.theta, atol=1e-5)
        assert float(adapter.logged["share_in_subspace"]) == pytest.approx(hand.share, abs=1e-4)
        shares.append(hand.share)
    # gradients of batches 2, 4 and 6 make three; those of 8, 10 and 12 fill the queue and push out the first two
    assert shares[:6] == [1.0] * 6 and all(share < 0.999 for share in shares[6:])
    assert int(adapter.subspace.pushed) == 6
    held = sorted(adapter.subspace.queue.tolist())
    assert np.allclose(held, sorted(row.tolist() for row in hand.rows), atol=1e-4), "raw gradients, the last four"


def test_without_a_full_subspace_it_is_eta_bit_for_bit() -> None:
    eta, same = sf.adapt(tiny_net(), "eta", optimizer="sgd"), sf.adapt(tiny_net(), "lcotta", components=7, interval=1)
    for x in batches(7):
        assert torch.equal(same(x), eta(x))
    assert 1 <= int(same.subspace.pushed) <= 6 and torch.equal(same.average, eta.average)


def test_sgd_stays_in_the_subspace() -> None:
    adapter = lcotta(interval=1)
    stream = [by_hand.inputs(16, seed=seed) for seed in range(5)]
    for x in stream[:4]:
        adapter(x)
    adapter.optimizer_student.forget()  # momentum of before does not lie in it
    before = by_hand.weights(adapter.student)
    adapter(stream[4])
    change, basis = by_hand.weights(adapter.student) - before, adapter.subspace.basis.numpy().astype(float)
    assert np.abs(change).max() > 1e-3
    assert np.allclose(basis.T @ (basis @ change), change, atol=1e-6)


def filled(rows: torch.Tensor, capacity: int, components: int) -> Subspace:
    space = Subspace(rows.shape[1], capacity, components, HOST)
    for row in rows:
        space.push(row, torch.tensor(True))
    return space


def test_the_axes_are_orthonormal_and_those_of_a_singular_value_decomposition() -> None:
    rows = torch.randn(12, 300, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 4, 300) * 1e-4
    axes = filled(rows, 20, 5).basis
    assert torch.allclose(axes @ axes.T, torch.eye(5), atol=1e-5)
    right = torch.linalg.svd((rows - rows.mean(0)).double(), full_matrices=False).Vh[:5].float()
    assert torch.allclose(axes.T @ axes, right.T @ right, atol=1e-5)


def test_an_axis_without_variance_is_left_out() -> None:
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    axes = filled(rows, 6, 3).basis  # three rows, centred: two directions
    assert torch.allclose(axes @ axes.T, torch.diag(torch.tensor([0.0, 1.0, 1.0])), atol=1e-5)
    flat = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)) @ rows[:2]  # in a plane, but for rounding
    axes = filled(1e-3 * flat, 12, 4).basis
    assert torch.allclose(axes @ axes.T, torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0])), atol=1e-5)


def test_equal_vectors_span_nothing() -> None:
    row = torch.randn(40, generator=torch.Generator().manual_seed(0))
    space = filled(row.expand(7, 40), 9, 3)
    assert not space.basis.any() and not space.project(row).any()
    assert not principal_axes(torch.zeros(4, 5), torch.zeros(4, dtype=torch.bool), 2).any()


def test_the_oldest_goes_first_and_a_vector_without_use_does_not_enter() -> None:
    space = Subspace(2, 3, 2, HOST)
    yes, no = torch.tensor(True), torch.tensor(False)
    for value in (1.0, 2.0, 3.0, 4.0):
        space.push(torch.full((2,), value), yes)
        space.push(torch.full((2,), 9.0), no)
        space.push(torch.full((2,), float("nan")), yes)
        space.push(torch.zeros(2), yes)
    assert int(space.pushed) == 4 and sorted(space.queue[:, 0].tolist()) == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("coast", [False, True])
def test_an_empty_filter_is_not_sampled_and_coasts_only_if_asked(coast: bool) -> None:
    adapter = lcotta(interval=1, coast=coast)
    for seed in range(2):
        adapter(by_hand.inputs(seed=seed))
    before, pushed = by_hand.weights(adapter.student), int(adapter.subspace.pushed)
    momentum = adapter.optimizer_student.first.numpy().astype(float)
    uncertain = torch.zeros(5, 4)  # LayerNorm of a constant is zero: logits of the shift alone
    assert (by_hand.entropies(by_hand.logits(before, uncertain.numpy())) > E0).all()
    adapter(uncertain)
    after = by_hand.weights(adapter.student)
    assert np.allclose(after, before - 0.1 * 0.9 * 0.9 * momentum if coast else before, atol=1e-6)
    assert np.array_equal(after, before) is not coast
    assert int(adapter.subspace.pushed) == pushed and adapter.skipped == 0


def test_one_image_equal_images_and_a_short_batch_stay_finite() -> None:
    adapter = lcotta(interval=1)
    for x in (
        by_hand.inputs(1),
        *[by_hand.inputs(1).repeat(6, 1)] * 5,
        by_hand.inputs(3),
        torch.zeros(1, 4),
        by_hand.inputs(),
    ):
        assert torch.isfinite(adapter(x)).all()
    for name, value in adapter.state_dict().items():
        assert not isinstance(value, torch.Tensor) or torch.isfinite(value.float()).all(), name


def test_reset_and_resume_within_the_subspace() -> None:
    stream = [by_hand.inputs(16, seed=seed) for seed in range(12)]
    adapter = lcotta()
    expected = [adapter(x) for x in stream]
    assert adapter.subspace.basis.any()
    adapter.reset()
    space = adapter.subspace
    assert adapter.steps == 0 and not space.queue.any() and not space.basis.any() and int(space.pushed) == 0
    assert not adapter.optimizer_student.first.any() and not bool(adapter.started)
    assert all(torch.equal(adapter(x), y) for x, y in zip(stream[:9], expected, strict=False))
    other = lcotta().prepare(stream[0])
    other.load_state_dict(adapter.state_dict())
    assert all(torch.equal(other(x), y) for x, y in zip(stream[9:], expected[9:], strict=True))


def test_the_projection_is_exact_under_autocast() -> None:
    space = filled(torch.randn(6, 50, generator=torch.Generator().manual_seed(0)), 6, 3)
    vector = torch.linspace(-1, 1, 50)
    with torch.autocast("cpu", torch.bfloat16):
        rough = space.project(vector)
        again = filled(space.queue, 6, 3).basis
    assert torch.equal(rough, space.project(vector)) and torch.equal(again, space.basis)


@pytest.mark.parametrize("coast", [False, True])
def test_a_bad_batch_under_the_deferred_check_leaves_everything_alone(coast: bool) -> None:
    adapter = lcotta(check_input="deferred", interval=1, coast=coast)
    for seed in range(5):
        adapter(by_hand.inputs(seed=seed))
    before = {k: v.clone() for k, v in adapter.state_dict().items() if isinstance(v, torch.Tensor)}
    bad = by_hand.inputs(seed=9)
    bad[0, 0] = float("nan")
    adapter(bad)
    assert not [k for k, v in before.items() if not torch.equal(v, adapter.state_dict()[k])]
    with pytest.raises(sf.InputError):
        adapter.check()


def test_a_model_without_norm_layers_predicts() -> None:
    net = nn.Linear(4, 3)
    with pytest.warns(UserWarning, match="no norm layers"):
        adapter = sf.adapt(net, "lcotta", probe=torch.rand(2, 4), interval=1)
    for seed in range(3):
        x = by_hand.inputs(seed=seed)
        assert torch.allclose(adapter(x), net(x), atol=1e-6)


def test_presets_and_what_does_not_fit_together() -> None:
    cnn, vit = LcottaConfig.for_("imagenet"), LcottaConfig.for_("transformer")
    assert (cnn.lr, cnn.components, cnn.queue, cnn.interval) == (1.5e-4, 25, 100, 50)
    assert (vit.lr, vit.components, vit.queue, vit.interval) == (5e-4, 50, 100, 100)
    assert cnn.optimizer == vit.optimizer == "sgd" and cnn.redundancy_margin == vit.redundancy_margin == 0.05
    with pytest.raises(sf.ConfigError, match="components"):
        LcottaConfig(components=30, queue=20)
