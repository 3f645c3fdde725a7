"""ViDA's uncertainty, shares, bottlenecks and step, against NumPy and against branches written out."""

import io
from pathlib import Path

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand import Array
from by_hand_batch import numbers
from torch import Tensor, nn
from torch.nn import functional as F

import slomofast as sf
from slomofast.core.adapter import Adapter
from slomofast.core.params import flatten, trainable
from slomofast.methods import vida
from slomofast.models.vit import VisionTransformer
from slomofast.models.wideresnet import WideResNet
from slomofast.testing import batches, synthetic_batch, tiny_net

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}
LIVELY = {"lr": 1e-2, "adapter_lr": 1e-2, "teacher_momentum": 0.9, "adapter_momentum": 0.5, "views": 3}
NARROW, WIDE = 1, 2
RANKS = NARROW + WIDE
SIZES = (8, 12, RANKS * 4, 3 * RANKS)  # scales and shifts, head, down, up


def bottlenecks(network: nn.Module) -> list[vida.Bottlenecks]:
    return [m for m in network.modules() if isinstance(m, vida.Bottlenecks)]


def everything(network: nn.Module) -> Tensor:
    return flatten(list(network.parameters()))


def source_batches(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [synthetic_batch(16, generator) for _ in range(count)]


def view(x: Tensor, k: int) -> Tensor:
    """The k-th view of a step: inputs mixed, so that no norm layer undoes it."""
    return x * torch.tensor([1.0 + 0.3 * k, 1.0, 1.0 - 0.2 * k, 1.0]) + 0.1 * k * x.roll(1, 1)


@pytest.fixture
def counted_views(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Augmentation without chance: a step of four views makes views 0 to 3."""
    calls: list[int] = []

    def made(x: Tensor, *_: object, per: str) -> Tensor:
        calls.append(len(calls))
        return view(x, calls[-1] % 4)

    monkeypatch.setattr(vida, "augment", made)
    return calls


def weights(network: nn.Module) -> Array:
    norm, head = network.body[0], network.head.parametrizations.weight
    parts = (norm.weight, norm.bias, head.original, head[0].down, head[0].up)
    return np.concatenate([numbers(part).ravel() for part in parts])


def logits(at: Array, x: Tensor, low: float, high: float, kind: str) -> Array:
    theta, head, down, up = np.split(at, np.cumsum(SIZES)[:-1])
    rows = numbers(x)
    if kind == "batch":
        z = by_hand_batch.features(theta, rows)
    else:
        centred = rows - rows.mean(1, keepdims=True)
        z = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * theta[:4] + theta[4:]
    down, up = down.reshape(RANKS, 4), up.reshape(3, RANKS)
    out = []
    for row in z:  # three branches, image by image
        shared = up[:, :NARROW] @ (down[:NARROW] @ row)
        special = up[:, NARROW:] @ (down[NARROW:] @ row)
        out.append(head.reshape(3, 4) @ row + low * shared + high * special)
    return np.array(out)


def uncertainty(outputs: list[Array]) -> float:
    """A tenth of the mean over images and classes of the variance over views."""
    found = []
    for values in np.stack(outputs, -1).reshape(-1, len(outputs)).tolist():
        mean = sum(values) / len(values)
        found.append(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return 0.1 * sum(found) / len(found)


def started(kind: str, **options: object) -> Adapter:
    """An adapter whose bottlenecks already do something, and not the same in both networks."""
    net = by_hand.network() if kind == "layer" else by_hand_batch.network()
    adapter = sf.adapt(net, "vida", narrow=NARROW, wide=WIDE, views=4, **options).prepare(by_hand.inputs(6))
    generator = torch.Generator().manual_seed(1)
    for layer in bottlenecks(adapter):
        layer.up.data.copy_(0.8 * torch.randn(layer.up.shape, generator=generator))
    return adapter


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_steps_by_hand(counted_views: list[int], kind: str, symmetric: bool) -> None:
    options = {"adapter_lr": 0.3, "teacher_momentum": 0.9, "adapter_momentum": 0.6, "restore": 0.0, "threshold": 0.03}
    adapter = started(kind, symmetric=symmetric, **options, **PLAIN)
    own = SIZES[0] + SIZES[1]
    rate = np.where(np.arange(sum(SIZES)) < own, 0.1, 0.3)
    momentum = np.where(np.arange(sum(SIZES)) < own, 0.9, 0.6)
    low, high, sides = 1.0, 1.0, []
    for seed, rows, strength in ((0, 6, 1.0), (1, 4, 0.2), (2, 7, 1.5)):
        # LayerNorm does not see the strength, so a small one comes with an offset
        x = strength * by_hand.inputs(rows, seed) + (3.0 if strength < 1 and kind == "layer" else 0.0)
        student, teacher = weights(adapter.student), weights(adapter.teacher)
        # with the shares that the batch before has left
        u = uncertainty([logits(teacher, view(x, k), low, high, kind) for k in range(4)])
        low, high = (1 - u, 1 + u) if u >= 0.03 else (1 + u, 1 - u)
        sides.append(u >= 0.03)
        target = logits(teacher, x, low, high, kind)

        def loss(at: Array, x: Tensor = x, target: Array = target, low: float = low, high: float = high) -> float:
            z = logits(at, x, low, high, kind)
            forward, reverse = by_hand_batch.cross_entropy(target, z), by_hand_batch.cross_entropy(z, target)
            return float((0.5 * forward + 0.5 * reverse if symmetric else forward).mean())

        output = adapter(x)
        assert np.allclose(numbers(output), target, atol=1e-4)
        assert float(adapter.logged["uncertainty"]) == pytest.approx(u, rel=1e-4)
        assert float(adapter.logged["share_narrow"]) == pytest.approx(low, rel=1e-4)
        assert float(adapter.logged["share_wide"]) == pytest.approx(high, rel=1e-4)
        assert float(adapter.logged["loss"]) == pytest.approx(loss(student), rel=1e-4)
        stepped = student - rate * by_hand.slope(loss, student)
        assert np.abs(stepped - student).max() > 1e-3
        assert np.allclose(weights(adapter.student), stepped, atol=1e-4)
        assert np.allclose(weights(adapter.teacher), momentum * teacher + (1 - momentum) * stepped, atol=1e-4)
    assert len(counted_views) == 12
    if kind == "layer":  # BatchNorm takes every strength away
        assert len(set(sides)) == 2, "only one side of the threshold was seen"


@pytest.mark.parametrize(
    ("u", "allot", "narrow", "wide"),
    [
        (0.1, "both", 1.1, 0.9),
        (0.2, "both", 0.8, 1.2),  # from the threshold on
        (0.5, "both", 0.5, 1.5),
        (7.0, "both", 0.0, 2.0),  # neither below zero nor without bound
        (0.5, "narrow", 0.5, 1.0),
        (0.1, "narrow", 1.1, 1.0),
    ],
)
def test_shares(u: float, allot: vida.Allot, narrow: float, wide: float) -> None:
    found = vida.allotted(torch.tensor(u, dtype=torch.float64), 0.2, allot)
    assert [float(share) for share in found] == pytest.approx([narrow, wide])


@pytest.mark.parametrize("allot", ["both", "narrow"])
def test_both_networks_mix_with_the_shares(allot: str) -> None:
    adapter = sf.adapt(tiny_net(), "vida", threshold=0.0, narrow=2, wide=5, allot=allot)
    adapter(batches(1)[0])
    u = float(adapter.logged["uncertainty"])
    expected = torch.tensor([1 - u] * 2 + [1 + u if allot == "both" else 1.0] * 5)
    assert 0.01 < u < 1 and len(bottlenecks(adapter)) == 2
    for layer in bottlenecks(adapter):
        assert torch.allclose(layer.shares, expected)
    logged = adapter.logged["share_narrow"]
    adapter(batches(2)[1])
    assert float(logged) == pytest.approx(1 - u), "a figure read late is that of its step"
    assert float(adapter.logged["share_narrow"]) != pytest.approx(1 - u)


def test_loss_in_one_direction_teaches_nothing() -> None:
    """Student and teacher see the same image with the same weights: the reason why both directions are the default."""
    moved = {}
    for symmetric in (False, True):
        adapter = sf.adapt(
            tiny_net(), "vida", symmetric=symmetric, restore=0.0, optimizer="sgd", lr=0.1, adapter_lr=0.1
        )
        first = everything(adapter.prepare(batches(1)[0]).student)
        for x in batches(4):
            adapter(x)
        moved[symmetric] = float((everything(adapter.student) - first).abs().max())
    assert moved[False] < 1e-6 and moved[True] > 1e-3


@pytest.mark.parametrize("layer", [nn.Conv2d(6, 5, 3, 2, 1), nn.Conv2d(6, 5, (1, 3), 1, 2, 2), nn.Conv2d(6, 5, 1)])
def test_a_convolution_equals_one_with_two_branches(layer: nn.Conv2d) -> None:
    generator = torch.Generator().manual_seed(0)
    down = vida.first_numbers(layer.weight, 1, 4, "fan_in", generator)
    change = vida.Bottlenecks(layer.weight, down)
    change.up.data.normal_(generator=generator)
    change.shares.copy_(torch.tensor([0.3] + [1.7] * 4))
    x = torch.rand(2, 6, 7, 7, generator=generator)
    place = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
    filters = down.view(5, *layer.weight.shape[1:])
    shared = F.conv2d(F.conv2d(x, filters[:1], **place), change.up[:, :1, None, None])
    special = F.conv2d(F.conv2d(x, filters[1:], **place), change.up[:, 1:, None, None])
    merged = F.conv2d(x, change(layer.weight), layer.bias, **place)
    assert torch.allclose(merged, layer(x) + 0.3 * shared + 1.7 * special, atol=1e-5)


class Tokens(nn.Module):
    """Patches and attention whose projections are packed in one weight."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.mlp, self.fc = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        return self.fc((tokens + self.mlp(tokens).relu()).mean(1))


class TokensV2(nn.Module):
    """No attention by its name's end, nor is the block below."""

    class AttentionBlock(nn.Sequential):
        class WindowAttentionV2(nn.Sequential):
            pass

    def __init__(self) -> None:
        super().__init__()
        inner = self.AttentionBlock.WindowAttentionV2(nn.Linear(3, 3))
        self.block = self.AttentionBlock(inner, nn.Linear(3, 5))
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(x))


def places(net: nn.Module) -> list[str]:
    names = {id(m): name for name, m in net.named_modules()}
    return [f"{names[id(m)]}.{weight}" for m, weight in vida.adapted_weights(net)]


def test_layers_that_carry_bottlenecks() -> None:
    assert places(tiny_net("batch")) == ["3.weight"]  # the first convolution is the stem
    assert places(tiny_net("layer")) == ["blocks.1.weight"]  # neither attention nor a second convolution
    assert places(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) == ["1.weight"]
    assert places(Tokens()) == ["attend.in_proj_weight", "attend.out_proj.weight"]
    separate = ["attend.q_proj_weight", "attend.k_proj_weight", "attend.v_proj_weight", "attend.out_proj.weight"]
    assert places(Tokens(kdim=6, vdim=4)) == separate
    assert places(TokensV2()) == ["block.0.0.weight"]
    assert places(VisionTransformer(depth=1)) == ["blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight"]
    grouped = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 1), nn.Linear(4, 2))
    assert places(grouped) == ["2.weight"]
    wide = WideResNet(10, 1)
    assert len(places(wide)) == sum(isinstance(m, nn.Conv2d) for m in wide.modules()) - 1


def test_a_network_without_such_a_layer_is_refused() -> None:
    net = sf.Classifier(nn.Flatten(), nn.LayerNorm(12))
    with pytest.raises(sf.ModelError, match="bottlenecks"):
        sf.adapt(net, "vida")(torch.rand(4, 3, 2, 2))


def test_packed_attention_projections_are_changed_by_two_products() -> None:
    torch.manual_seed(0)
    net = Tokens().eval()
    adapter = sf.adapt(net, "vida", narrow=1, wide=3, **{**LIVELY, "lr": 0.0})
    for x in batches(3):
        adapter(x)
    # by hand: the source network with both weights moved
    first, last = bottlenecks(adapter.teacher)
    with torch.no_grad():
        for weight, change in ((net.attend.out_proj.weight, first), (net.attend.in_proj_weight, last)):
            assert change.up.abs().max() > 1e-3
            for r, share in enumerate(adapter.shares):
                weight += share * torch.outer(change.up[:, r], change.down[r])
        assert torch.allclose(adapter.predict(x), net(x), atol=1e-5)


@pytest.mark.parametrize("net", ["batch", "group", "layer"])
def test_the_network_starts_as_the_source(net: str) -> None:
    x = batches(1)[0]
    assert torch.allclose(sf.adapt(tiny_net(net), "vida")(x), sf.adapt(tiny_net(net), "bn")(x), atol=1e-5)


def test_spread_of_the_first_numbers() -> None:
    weight = torch.zeros(7, 40, 5, 5)
    drawn = {
        init: vida.first_numbers(weight, 3, 128, init, torch.Generator().manual_seed(0))
        for init in ("fan_in", "published")
    }
    assert drawn["fan_in"].shape == (131, 1000)
    for rows in (slice(0, 3), slice(3, None)):
        assert float(drawn["fan_in"][rows].std()) == pytest.approx(1000**-0.5, rel=0.05)
    assert float(drawn["published"][:3].std()) == pytest.approx(1 / 9, rel=0.05)
    assert float(drawn["published"][3:].std()) == pytest.approx(128**-2, rel=0.05)


def test_all_of_the_network_and_the_bottlenecks_learn() -> None:
    adapter = sf.adapt(tiny_net(), "vida", restore=0.0, wide=4)
    stream = batches(3)
    source = adapter.prepare(stream[0]).student.state_dict()
    source = {name: value.clone() for name, value in source.items()}
    for x in stream:
        adapter(x)
    still = [name for name, p in adapter.student.named_parameters() if torch.equal(p, source[name])]
    assert not still
    own, added = (sum(p.numel() for p in group) for group in vida.parameter_groups(adapter.student))
    assert own == sum(p.numel() for p in tiny_net().parameters()) and added == 5 * (8 * 9 + 12)
    assert sum(p.numel() for p in adapter.optimizer("adapters").targets) == added
    assert adapter.optimizer("adapters").lr == 1e-4 and adapter.optimizer().lr == 1e-3


def test_a_step_is_one_pass_more_than_its_views() -> None:
    adapter = sf.adapt(tiny_net(), "vida", views=4).prepare(batches(1)[0])
    passes = {"teacher": 0, "student": 0}
    for name in passes:

        def count(*_: object, name: str = name) -> None:
            passes[name] += 1

        getattr(adapter, name).body.register_forward_hook(count)
    adapter(batches(1)[0])
    assert passes == {"teacher": 5, "student": 1}


def test_the_teacher_takes_the_student_from_before_its_restoration() -> None:
    kept, restored = (sf.adapt(tiny_net(), "vida", restore=r, **LIVELY) for r in (0.0, 1.0))
    x = batches(1)[0]
    source = everything(kept.prepare(x).student)
    kept(x)
    restored(x)
    assert torch.equal(everything(restored.student), source), "bottlenecks return as well"
    assert torch.equal(everything(restored.teacher), everything(kept.teacher))
    assert not torch.equal(everything(kept.teacher), source)


def test_a_share_of_all_weights_returns() -> None:
    adapter = sf.adapt(tiny_net(), "vida", restore=0.3, **LIVELY)
    source = everything(adapter.prepare(batches(1)[0]).student)
    for x in batches(2):  # in the first step `down` has no gradient
        adapter(x)
    same = (everything(adapter.student) == source).float().mean()
    assert 0.25 < float(same) < 0.35


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("net", ["batch", "layer"])
@pytest.mark.parametrize("check", ["off", "deferred"])
def test_a_bad_batch_leaves_the_shares_alone(net: str, check: str) -> None:
    stream = batches(3)
    adapter = sf.adapt(tiny_net(net), "vida", check_input=check, restore=0.0, **LIVELY)
    adapter(stream[0])
    student, shares = everything(adapter.student), adapter.shares.clone()
    assert not torch.equal(shares, torch.ones_like(shares))
    bad = stream[1].clone()
    bad[0, 0, 0, 0] = float("nan")
    adapter(bad)
    assert torch.equal(adapter.shares, shares) and torch.equal(everything(adapter.student), student)
    assert all(torch.equal(layer.shares, shares) for layer in bottlenecks(adapter))
    if check == "deferred":
        with pytest.raises(sf.InputError):
            adapter(stream[2])
    assert torch.isfinite(adapter(stream[2])).all() and not torch.equal(adapter.shares, shares)


@pytest.mark.parametrize("net", ["batch", "layer"])
def test_few_images_and_equal_ones(net: str) -> None:
    adapter = sf.adapt(tiny_net(net), "vida", **LIVELY)
    stream = batches(4)
    for x in (stream[0][:1], stream[1], stream[2][:3], stream[3][:1].repeat(5, 1, 1, 1)):
        assert torch.isfinite(adapter(x)).all()
        assert 0 <= float(adapter.logged["uncertainty"]) < 10
    assert adapter.skipped == 0
    with pytest.raises(sf.InputError, match="empty"):
        adapter(stream[0][:0])


def test_very_unsure_teachers_turn_no_share_negative() -> None:
    net = tiny_net()
    net[-1].weight.data.mul_(100)
    adapter = sf.adapt(net, "vida", **LIVELY)
    for x in batches(3):
        assert torch.isfinite(adapter(x)).all()
    assert float(adapter.logged["uncertainty"]) > 2
    assert float(adapter.logged["share_narrow"]) == 0.0 and float(adapter.logged["share_wide"]) == 2.0


@pytest.mark.parametrize("net", ["batch", "layer"])
def test_reset_returns_shares_and_bottlenecks(net: str) -> None:
    adapter = sf.adapt(tiny_net(net), "vida", **LIVELY)
    outputs = [adapter(x) for x in batches(3)]
    assert bool((adapter.shares != 1).all()) and bool(bottlenecks(adapter.teacher)[0].up.any())
    adapter.reset()
    assert torch.equal(adapter.shares, torch.ones(129))
    for layer in bottlenecks(adapter):
        assert torch.equal(layer.shares, adapter.shares) and not bool(layer.up.any())
    assert not bool(adapter.optimizer("adapters").first.any())
    assert all(torch.equal(adapter(x), y) for x, y in zip(batches(3), outputs, strict=True))


@pytest.mark.parametrize("warmup", [0, 3])
def test_state_goes_on_from_disk(tmp_path: Path, warmup: int) -> None:
    stream, net = batches(5), tiny_net()
    whole = sf.adapt(net, "vida", restore=0.2, warmup_steps=warmup, **LIVELY)
    if warmup:
        whole.fit_source(source_batches())
    for x in stream[:3]:
        whole(x)
    whole.save(tmp_path / "vida.pt")
    again = sf.load(tmp_path / "vida.pt", net)
    assert torch.equal(again.shares, whole.shares) and torch.equal(again.initial, whole.initial)
    assert torch.equal(again.predict(stream[3]), whole.predict(stream[3]))
    assert all(torch.equal(again(x), whole(x)) for x in stream[3:])
    whole.reset()
    again.reset()
    for (name, a), (_, b) in zip(whole.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_the_exported_network_is_an_ordinary_one() -> None:
    stream = batches(5)
    adapter = sf.adapt(tiny_net(), "vida", **LIVELY)
    for x in stream[:3]:
        adapter(x)
    plain, expected = adapter.export(), adapter.predict(stream[3])
    names = [name.removeprefix("networks.teacher.") for name, _ in plain.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in sf.adapt(tiny_net(), "bn").prepare(x).student.named_parameters())
    assert {type(m) for m in plain.modules() if isinstance(m, nn.Conv2d)} == {nn.Conv2d}
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    # the adapter goes on, and the copy does not follow it
    adapter(stream[3])
    assert not torch.equal(adapter.predict(stream[3]), expected)
    for network in (plain, torch.load(file, weights_only=False)):
        assert torch.allclose(network(stream[3]), expected, atol=1e-6)


@pytest.mark.parametrize("net", ["batch", "layer"])
def test_warming_up_moves_bottlenecks_alone(net: str) -> None:
    adapter = sf.adapt(tiny_net(net), "vida", warmup_steps=4, restore=1.0)
    assert adapter.needs_source
    before = [p.clone() for p in vida.parameter_groups(adapter.prepare(batches(1)[0]).student)[0]]
    adapter.fit_source(source_batches())
    own, _ = vida.parameter_groups(adapter.student)
    assert all(torch.equal(p, b) for p, b in zip(own, before, strict=True))
    assert all(bool(layer.up.any()) for layer in bottlenecks(adapter.student))
    assert torch.equal(everything(adapter.teacher), everything(adapter.student))
    warm = flatten(trainable(adapter.student))
    assert torch.equal(adapter.initial, warm)
    optimizer = adapter.optimizer("adapters")
    assert optimizer.lr == 1e-4 and not bool(optimizer.first.any()) and float(optimizer.count) == 0
    for x in batches(2):
        adapter(x)
    assert torch.equal(flatten(trainable(adapter.student)), warm), "a restored weight is the warmed-up one"
    adapter.reset()
    assert torch.equal(everything(adapter.teacher), warm)


def test_warming_up_lowers_the_loss_on_source_labels_and_then_ends() -> None:
    taken: list[int] = []

    def loader() -> object:
        for k in range(100):
            taken.append(k)
            yield source_batches(1)[0]

    images, labels = source_batches(1)[0]
    losses = []
    for steps in (1, 20):
        taken.clear()
        adapter = sf.adapt(tiny_net(), "vida", warmup_steps=steps).fit_source(loader())
        losses.append(float(F.cross_entropy(adapter.predict(images), labels)))
        assert len(taken) == steps
    assert losses[1] < losses[0]


def test_source_data_is_asked_for_only_to_warm_up() -> None:
    assert not sf.describe("vida").needs_source
    with pytest.raises(sf.ConfigError, match="warmup_steps"):
        sf.adapt(tiny_net(), "vida").fit_source(source_batches())
    with pytest.raises(sf.ConfigError, match="fit_source"):
        sf.adapt(tiny_net(), "vida", warmup_steps=2)(batches(1)[0])
    bad = [(source_batches(1)[0][0], torch.full((16,), 9))]
    with pytest.raises(sf.DataError, match="labels"):
        sf.adapt(tiny_net(), "vida", warmup_steps=2).fit_source(bad)


def test_presets() -> None:
    build = vida.VidaConfig.for_
    assert build("cifar") == vida.VidaConfig() and build("cifar").restore == 0.01
    found = {name: build(name) for name in ("imagenet", "vit_cifar10", "vit_cifar100", "vit_imagenet")}
    assert [c.adapter_lr for c in found.values()] == [1e-3, 1e-5, 1e-6, 2e-7]
    assert [c.lr for c in found.values()] == [0.01, 1e-4, 3e-4, 5e-7]
    assert [c.threshold for c in found.values()] == [0.2, 0.05, 0.05, 0.2]
    assert [c.restore for c in found.values()] == [0.001, 0.1, 0.1, 0.0]
    assert [c.adapter_momentum for c in found.values()] == [0.999, 0.999, 0.999, 0.8]
    assert [c.optimizer for c in found.values()] == ["sgd", "adam", "adam", "sgd"]
