"""The contract of adapters as runnable checks, for this package's methods and for those of other packages.

    from slomofast.testing import check_method
    check_method("my_method")

or, one test per check and network,

    @pytest.mark.parametrize("net", NETS)
    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check, net): CHECKS[check]("my_method", net)
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import slomofast
from slomofast.core.adapter import Adapter
from slomofast.core.errors import InputError
from slomofast.core.optim import FlatOptimizer
from slomofast.core.registry import describe

NETS = ("batch", "group", "layer")
CLASSES = 4
SIDE = 12


class _Tokens(nn.Module):
    """A small network of patches, LayerNorm and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.blocks = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.patches(x).flatten(2).mT).mean(1))


def _convolutional(norm: Callable[[int], nn.Module]) -> nn.Module:
    def stage(width_in: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(width_in, width, 3, stride=2, padding=1, bias=False), norm(width), nn.ReLU()]

    return nn.Sequential(*stage(3, 8), *stage(8, 12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES))


@functools.lru_cache
def _trained(kind: str) -> nn.Module:
    """A tiny network of a kind, trained for a second on the synthetic task."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "layer":
            net: nn.Module = _Tokens()
        else:
            net = _convolutional(nn.BatchNorm2d if kind == "batch" else lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode(False), torch.enable_grad():
        for _ in range(60):
            x, y = synthetic_batch(64, generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.eval()


def tiny_net(kind: str = "batch") -> nn.Module:
    """A fresh copy of a tiny trained classifier with BatchNorm, GroupNorm or LayerNorm, for (B, 3, 12, 12) images."""
    return deepcopy(_trained(kind))


def synthetic_batch(count: int, generator: torch.Generator, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Images of four easy textures with noise, in [0, 1], and their labels."""
    if labels is None:
        labels = torch.randint(0, CLASSES, (count,), generator=generator)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    textures = torch.stack([x % 2, y % 2, (x + y) % 2, (x // 2 + y // 2) % 2]).float()
    tint = 0.5 + 0.5 * torch.rand(count, 3, 1, 1, generator=generator)
    noise = 0.15 * torch.randn(count, 3, SIDE, SIDE, generator=generator)
    return (0.2 + 0.5 * tint * textures[labels][:, None] + noise).clamp(0, 1), labels


def shifted(x: Tensor) -> Tensor:
    """The same images under low contrast and a colour cast: a shift that test statistics undo."""
    cast = torch.tensor([0.45, 0.1, 0.25])[None, :, None, None]
    return (0.4 * x + cast).clamp(0, 1)


def batches(count: int = 6, size: int = 16, seed: int = 5) -> list[Tensor]:
    """A short shifted stream."""
    generator = torch.Generator().manual_seed(seed)
    return [shifted(synthetic_batch(size, generator)[0]) for _ in range(count)]


def make(method: str, net: nn.Module, **options: Any) -> Adapter:
    """An adapter ready for the stream: source data is fitted where the method needs it."""
    adapter = slomofast.adapt(net, method, **options)
    if adapter.needs_source:
        generator = torch.Generator().manual_seed(9)
        adapter.fit_source([synthetic_batch(16, generator) for _ in range(6)])
    return adapter


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return bool(a == b)


def _snapshot(module: nn.Module) -> dict[str, Any]:
    return deepcopy(dict(module.state_dict()))


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [key for key in a if key not in b or not _same(a[key], b[key])] + [key for key in b if key not in a]


def check_output(method: str, net: str) -> None:
    """Logits are detached, fp32, finite and of shape (batch, classes)."""
    adapter = make(method, tiny_net(net))
    for x in batches(3):
        y = adapter(x)
        assert y.shape == (len(x), CLASSES) and y.dtype == torch.float32 and not y.requires_grad
        assert torch.isfinite(y).all()
    assert adapter.predict(x).shape == (len(x), CLASSES)


def check_reset(method: str, net: str) -> None:
    """`reset` returns to the first state bit for bit, and the stream replays to the same outputs."""
    adapter = make(method, tiny_net(net)).prepare(batches(1)[0])
    first = _snapshot(adapter)
    outputs = [adapter(x) for x in batches()]
    adapter.reset()
    assert not _differing(first, adapter.state_dict()), _differing(first, adapter.state_dict())
    assert all(torch.equal(adapter(x), y) for x, y in zip(batches(), outputs, strict=True))


def check_resume(method: str, net: str) -> None:
    """Saving at step 3 and continuing from disk equals never having stopped."""
    stream, source = batches(), tiny_net(net)
    whole = make(method, source)
    expected = [whole(x) for x in stream]
    part = make(method, source)
    for x in stream[:3]:
        part(x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter.pt"
        part.save(path)
        again = slomofast.load(path, source)
    assert again.config == part.config and again.steps == 3
    assert all(torch.equal(again(x), y) for x, y in zip(stream[3:], expected[3:], strict=True))
    assert not _differing(whole.state_dict(), again.state_dict())
    whole.reset()
    again.reset()
    assert not _differing(whole.state_dict(), again.state_dict()), "a loaded adapter resets to something else"


def check_state_dict(method: str, net: str) -> None:
    """`state_dict` survives `torch.save` and loads with `weights_only=True` into a fresh adapter."""
    adapter = make(method, tiny_net(net))
    for x in batches(2):
        adapter(x)
    buffer = io.BytesIO()
    torch.save(adapter.state_dict(), buffer)
    buffer.seek(0)
    fresh = make(method, tiny_net(net)).prepare(batches(1)[0])
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(fresh(batches(3)[2]), adapter(batches(3)[2]))


def check_model_untouched(method: str, net: str) -> None:
    """The user's model keeps weights, buffers, mode, gradient flags and hooks."""
    model = tiny_net(net).train()
    before, flags = _snapshot(model), [p.requires_grad for p in model.parameters()]
    adapter = make(method, model)
    for x in batches(3):
        adapter(x)
    assert not _differing(before, dict(model.state_dict()))
    assert model.training and flags == [p.requires_grad for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def check_inputs_untouched(method: str, net: str) -> None:
    """A batch is not written to."""
    adapter = make(method, tiny_net(net))
    for x in batches(3):
        copy = x.clone()
        adapter(x)
        adapter.predict(x)
        assert torch.equal(x, copy)


def check_small_batches(method: str, net: str) -> None:
    """A batch of one and a short last batch give finite logits and finite state."""
    adapter = make(method, tiny_net(net))
    stream = batches(5)
    for x in (stream[0], stream[1][:1], stream[2][:3], stream[3][:1], stream[4]):
        assert torch.isfinite(adapter(x)).all()
    lone = make(method, tiny_net(net))
    for x in stream:
        assert torch.isfinite(lone(x[:1])).all()
    for name, value in adapter.named_parameters():
        assert torch.isfinite(value).all(), name


def check_modes(method: str, net: str) -> None:
    """Outputs do not depend on no_grad, inference_mode, or the mode of the caller's model."""
    expected = [make(method, tiny_net(net))(x) for x in batches(1)]
    adapters = [make(method, tiny_net(net).train()) for _ in range(3)]
    reference = make(method, tiny_net(net))
    for x in batches(3):
        y = reference(x)
        with torch.no_grad():
            assert torch.equal(adapters[0](x), y)
        with torch.inference_mode():
            assert torch.equal(adapters[1](x.clone()), y)
        assert torch.equal(adapters[2](x), y)
    assert torch.equal(expected[0], make(method, tiny_net(net))(batches(1)[0]))


def check_deterministic(method: str, net: str) -> None:
    """Same seed, same outputs, whatever else draws random numbers; the global generator is left alone."""
    first, second = make(method, tiny_net(net), seed=3), make(method, tiny_net(net), seed=3)
    for x in batches():
        y = first(x)
        torch.rand(7)
        state = torch.random.get_rng_state()
        assert torch.equal(second(x), y)
        assert torch.equal(torch.random.get_rng_state(), state), "the global random state was used"


def check_bad_input(method: str, net: str) -> None:
    """Bad input is refused with an error, and the state is as before."""
    adapter = make(method, tiny_net(net))
    good = batches(2)
    adapter(good[0])
    before = _snapshot(adapter)
    x = good[1]
    nan, inf = x.clone(), x.clone()
    nan[0, 0, 0, 0], inf[-1, -1, -1, -1] = float("nan"), float("inf")
    bad: list[Any] = [nan, inf, x[:, :2], x[..., :-1], x[0], x[:0], (x * 255).to(torch.uint8), x.long(), x.numpy()]
    for value in bad:
        for call in (adapter, adapter.predict):
            try:
                call(value)
            except InputError as error:
                assert str(error)
            else:
                raise AssertionError(f"accepted {getattr(value, 'shape', None)} {getattr(value, 'dtype', None)}")
    assert not _differing(before, adapter.state_dict())


def check_not_finite(method: str, net: str) -> None:
    """A step whose gradient is not finite moves no weight and is counted."""
    adapter = make(method, tiny_net(net)).prepare(batches(1)[0])
    targets = [p for m in adapter.modules() if isinstance(m, FlatOptimizer) for p in m.targets]
    before = [p.detach().clone() for p in targets]
    true_grad = torch.autograd.grad
    torch.autograd.grad = lambda *a, **k: tuple(  # type: ignore[assignment]
        None if g is None else g * float("nan") for g in true_grad(*a, **k)
    )
    try:
        with _quiet():
            for x in batches(5):  # enough images for methods that gather some before they learn
                adapter(x)
    finally:
        torch.autograd.grad = true_grad
    assert all(torch.equal(p, b) for p, b in zip(targets, before, strict=True))
    if adapter.steps_taken_by_gradient:
        assert adapter.skipped > 0
    assert all(torch.isfinite(adapter(x)).all() for x in batches(2))


def check_predict(method: str, net: str) -> None:
    """`predict` and `members_predict` leave the state alone; `export` predicts what `predict` does."""
    adapter = make(method, tiny_net(net))
    stream = batches()
    for x in stream[:3]:
        adapter(x)
    before = _snapshot(adapter)
    expected = adapter.predict(stream[4])
    members = adapter.members_predict(stream[4])
    assert members and all(m.shape == expected.shape for m in members.values())
    assert not _differing(before, adapter.state_dict())
    plain = adapter.export()
    assert not any(p.requires_grad for p in plain.parameters())
    adapter(stream[5])
    with torch.no_grad():
        assert torch.allclose(plain(stream[4]), expected, atol=1e-6)


def check_config(method: str, net: str) -> None:
    """The config survives a round trip through plain values, and unknown options are refused."""
    config = describe(method).adapter.Config
    default = config.build({})
    assert config.build(dataclasses.asdict(default)) == default
    for item in default.options():
        assert item["help"], f"option {item['name']} of {method} has no help"
    for preset in (*config.PRESETS, "cifar", "cifar100", "imagenet"):
        assert isinstance(config.for_(preset), config)
    try:
        config.build({"no_such_option": 1})
    except slomofast.ConfigError as error:
        assert "no_such_option" in str(error)
    else:
        raise AssertionError("an unknown option was accepted")


def check_steady(method: str, net: str) -> None:
    """A stream may go on for ever: what a step leaves behind is what the step before left behind."""
    adapter, stream = make(method, tiny_net(net)), batches(2)

    def alive(steps: int) -> int:
        for number in range(steps):
            adapter(stream[number % 2])
        gc.collect()
        return sum(isinstance(found, Tensor) for found in gc.get_objects())

    alive(6)  # queues, caches and optimisers are made
    before = alive(2)
    after = alive(8)
    assert after == before, f"{after - before} tensors more after 8 further steps"


def check_bf16(method: str, net: str) -> None:
    """bf16 autocast runs, returns fp32, and starts near the fp32 prediction."""
    exact, rough = make(method, tiny_net(net)), make(method, tiny_net(net), precision="bf16")
    for x in batches(3):
        a, b = exact(x), rough(x)
        assert b.dtype == torch.float32 and torch.isfinite(b).all()
    first = make(method, tiny_net(net), precision="bf16")(batches(1)[0])
    reference = make(method, tiny_net(net))(batches(1)[0])
    assert (first.softmax(1) - reference.softmax(1)).abs().mean() < 0.05, (a, b)


def check_helps(method: str, net: str) -> None:
    """On a shift of the images, or one of the labels, the method's error is below the source's (BatchNorm net)."""
    if net != "batch" or method == "source":
        return
    iid, bursts = _stream_errors(method, correlated=False), _stream_errors(method, correlated=True)
    source_iid, source_bursts = _stream_errors("source", correlated=False), _stream_errors("source", correlated=True)
    assert iid < source_iid or bursts < source_bursts, (iid, source_iid, bursts, source_bursts)


def _stream_errors(method: str, correlated: bool) -> float:
    generator = torch.Generator().manual_seed(11)
    adapter, wrong, seen = make(method, tiny_net("batch")), 0, 0
    for step in range(24):  # long enough for methods that learn once in several batches
        labels = torch.full((24,), step % CLASSES) if correlated else None
        x, y = synthetic_batch(24, generator, labels)
        # mild for label bursts: batch statistics would remove the class itself
        x = x if correlated else shifted(x)
        x = (x + 0.12 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
        wrong += int((adapter(x).argmax(1) != y).sum())
        seen += len(y)
    return wrong / seen


CHECKS: dict[str, Callable[[str, str], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and callable(check)
}


def check_method(method: str, nets: tuple[str, ...] = NETS) -> None:
    """Run every check on every kind of network; raises with the check's name at the first failure."""
    for net in nets:
        for name, check in CHECKS.items():
            try:
                check(method, net)
            except Exception as error:
                raise AssertionError(f"{method} breaks '{name}' on the {net} network: {error!r}") from error
