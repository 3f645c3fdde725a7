"""The flat optimisers take the same steps as PyTorch's."""

from types import SimpleNamespace
from typing import Literal, cast

import pytest
import torch
from torch import Tensor, nn

import slomofast as sf
from slomofast.core import fused
from slomofast.core.optim import FlatOptimizer, OptimConfig
from slomofast.testing import batches, tiny_net


def _nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    b = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    b.load_state_dict(a.state_dict())
    return a, b


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["adam", "sgd", "sgd_plain"])
def test_same_as_pytorch(kind: str, weight_decay: float) -> None:
    ours, theirs = _nets()
    nesterov = kind == "sgd"
    config = OptimConfig(optimizer=kind.split("_")[0], lr=0.05, weight_decay=weight_decay, nesterov=nesterov)  # type: ignore[arg-type]
    flat = FlatOptimizer(list(ours.parameters()), config)
    if kind == "adam":
        reference: torch.optim.Optimizer = torch.optim.Adam(theirs.parameters(), lr=0.05, weight_decay=weight_decay)
    else:
        reference = torch.optim.SGD(
            theirs.parameters(), lr=0.05, momentum=0.9, nesterov=nesterov, weight_decay=weight_decay
        )
    for _ in range(6):
        x = torch.randn(7, 5)
        loss = ours(x).square().mean()
        flat.step(torch.autograd.grad(loss, flat.targets), loss)
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_bad_gradient_changes_nothing(kind: str, poison: float) -> None:
    net, _ = _nets()
    flat = FlatOptimizer(list(net.parameters()), OptimConfig(optimizer=kind, weight_decay=0.1))  # type: ignore[arg-type]
    good = [torch.ones_like(p) for p in net.parameters()]
    flat.step(good, torch.tensor(1.0))
    before = {k: v.clone() for k, v in (*net.state_dict().items(), *flat.state_dict().items())}
    bad = [g.clone() for g in good]
    bad[1][0] = poison
    flat.step(bad, torch.tensor(1.0))
    flat.step(good, torch.tensor(poison))
    after = {**net.state_dict(), **flat.state_dict()}
    assert [k for k in before if k != "skipped" and not torch.equal(before[k], after[k])] == []
    assert int(flat.skipped) == 2


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "huge"), [("adam", 1e20), ("adam", 3e38), ("sgd", 3e38)])
def test_a_finite_gradient_too_large_for_the_moments_changes_nothing(
    kind: Literal["adam", "sgd"], huge: float, weight_decay: float
) -> None:
    parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    config = OptimConfig(optimizer=kind, weight_decay=weight_decay)
    hit, spared = FlatOptimizer([parameter], config), FlatOptimizer([other], config)
    for value in (1.0, huge, -huge, huge, 1.0, 1.0):
        hit.step([torch.tensor([1.0, value, 1.0])], torch.zeros(()))
        if value == 1.0:
            spared.step([torch.ones(3)], torch.zeros(()))
    assert torch.equal(parameter, other) and torch.equal(hit.first, spared.first)
    assert torch.equal(hit.second, spared.second)
    assert int(hit.skipped) == 3 and float(hit.count) == 3


def test_weights_too_large_to_decay_change_nothing() -> None:
    parameter = nn.Parameter(torch.full((3,), 1e20))
    optimizer = FlatOptimizer([parameter], OptimConfig(weight_decay=1.0))
    optimizer.step([torch.ones(3)], torch.zeros(()))
    assert int(optimizer.skipped) == 1 and torch.isfinite(optimizer.second).all()


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_relative_steps_are_shares_of_the_weights(kind: str) -> None:
    plain, relative = _nets()
    before = [p.detach().clone() for p in plain.parameters()]
    x = torch.randn(7, 5)
    for net, on in ((plain, False), (relative, True)):
        flat = FlatOptimizer(list(net.parameters()), OptimConfig(optimizer=kind, lr=0.05, relative=on))  # type: ignore[arg-type]
        loss = net(x).square().mean()
        flat.step(torch.autograd.grad(loss, flat.targets), loss)
        assert "scale" not in flat.state_dict()
    for start, p, q in zip(before, plain.parameters(), relative.parameters(), strict=True):
        torch.testing.assert_close(q - start, (p - start) * start.square().mean().sqrt(), rtol=1e-4, atol=1e-7)


def test_relative_steps_do_not_care_how_large_weights_before_a_norm_are() -> None:
    def outputs(factor: float, relative: bool) -> list[torch.Tensor]:
        net = tiny_net("batch")
        with torch.no_grad():
            for module in net.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.mul_(factor)
        members = ("student", "fast", "slow")
        adapter = sf.adapt(net, "slomo_fast_star", relative=relative, lr=0.02, members=members, full_batch=0)
        return [adapter(x) for x in batches(4, size=48)]

    for one, other in zip(outputs(1.0, True), outputs(8.0, True), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert not torch.allclose(outputs(1.0, False)[-1], outputs(8.0, False)[-1], rtol=2e-2, atol=2e-2)


def test_adam_without_memory_is_a_fresh_one_each_step_with_a_rate_per_tensor() -> None:
    ours, theirs = _nets()
    config = OptimConfig(lr=0.05, weight_decay=0.1, momentum=0.0, beta2=0.0)
    flat = FlatOptimizer(list(ours.parameters()), config)
    paces = [0.0, 0.5, 1.0, 2.0]
    each = torch.cat([torch.full((p.numel(),), pace) for p, pace in zip(flat.targets, paces, strict=True)])
    for _ in range(4):
        x = torch.randn(7, 5)
        loss = ours(x).square().mean()
        flat.step(torch.autograd.grad(loss, flat.targets), loss, pace=each)
        groups = [{"params": [p], "lr": 0.05 * pace} for p, pace in zip(theirs.parameters(), paces, strict=True)]
        fresh = torch.optim.Adam(groups, weight_decay=0.1)
        fresh.zero_grad()
        theirs(x).square().mean().backward()
        fresh.step()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_step_left_out_changes_nothing_and_is_not_skipped(kind: str) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = FlatOptimizer([parameter], OptimConfig(optimizer=kind, lr=0.1))  # type: ignore[arg-type]
    for when in (True, False, True):
        before = parameter.detach().clone(), optimizer.first.clone(), optimizer.count.clone()
        optimizer.step([torch.ones(3)], torch.zeros(()), torch.tensor(when))
        same = [torch.equal(*pair) for pair in zip(before, (parameter, optimizer.first, optimizer.count), strict=True)]
        assert same == [not when] * 3
    assert int(optimizer.skipped) == 0


def test_one_kernel_serves_adam_without_weight_decay_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def fuses(cuda: bool = True, installed: bool = True, weights: int = fused.MANY, **options: object) -> bool:
        monkeypatch.setattr(fused, "available", lambda: installed)
        optimizer = FlatOptimizer([nn.Parameter(torch.ones(3))], OptimConfig(**options))  # type: ignore[arg-type]
        return optimizer.fuses(cast(Tensor, SimpleNamespace(is_cuda=cuda, numel=lambda: weights)))

    assert fuses() and fuses(momentum=0.0, relative=True)
    assert not any((fuses(cuda=False), fuses(installed=False), fuses(optimizer="sgd"), fuses(weight_decay=0.1)))
    assert not fuses(weights=fused.MANY - 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_one_kernel_steps_as_the_single_operations_do(
    momentum: float, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a gradient is not finite or too large, and where a step is left out."""
    monkeypatch.setattr(fused, "MANY", 1)

    def run(fuse: bool) -> tuple[list[nn.Parameter], FlatOptimizer]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape, device="cuda")) for shape in ((300, 17), (5000,))]
        optimizer = FlatOptimizer(parameters, OptimConfig(lr=0.01, momentum=momentum, relative=relative))
        assert optimizer.fuses(optimizer.first)
        monkeypatch.setattr(optimizer, "fuses", lambda gradient: fuse)
        bad = {2: torch.nan, 4: torch.inf, 6: 1e20}
        for step in range(8):
            gradients = [torch.randn_like(p) * 10.0**-step for p in parameters]
            if step in bad:
                gradients[step % 3 == 1][3] = bad[step]
            when = torch.tensor(step != 3, device="cuda")
            optimizer.step(gradients, torch.zeros((), device="cuda"), when, 0.5 if step == 5 else None)
        return parameters, optimizer

    (plain, one), (single, other) = run(False), run(True)
    assert int(one.skipped) == int(other.skipped) == 3 and float(one.count) == float(other.count) == 4
    for a, b in zip([*plain, one.first, one.second], [*single, other.first, other.second], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def _turned_net(last: bool) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(5 * 4 * 4, 2))
    return cast(nn.Sequential, net.to(memory_format=torch.channels_last)) if last else net  # type: ignore[call-overload]


def _walk(net: nn.Module, flat: FlatOptimizer, steps: int, pace: Tensor | None = None) -> None:
    for seed in range(steps):
        x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
        loss = net(x).square().mean()
        flat.step(torch.autograd.grad(loss, flat.targets), loss, pace=pace)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_steps_and_saved_states_do_not_depend_on_memory(kind: str) -> None:
    config = OptimConfig(optimizer=kind, lr=0.01, weight_decay=0.1, relative=True)  # type: ignore[arg-type]
    nets = [_turned_net(last) for last in (False, True)]
    plain, turned = (FlatOptimizer(list(net.parameters()), config) for net in nets)
    assert not next(nets[1].parameters()).is_contiguous()
    pace = torch.linspace(0.5, 2.0, plain.first.numel())
    for net, flat in zip(nets, (plain, turned), strict=True):
        _walk(net, flat, 3, pace)
    torch.testing.assert_close(nets[1].state_dict(), nets[0].state_dict())
    torch.testing.assert_close(turned.state_dict(), plain.state_dict())
    assert not torch.allclose(turned.first, plain.first)  # in memory they differ
    # either one goes on from the other's state
    again = _turned_net(True)
    resumed = FlatOptimizer(list(again.parameters()), config)
    again.load_state_dict(nets[0].state_dict())
    resumed.load_state_dict(plain.state_dict())
    for net, flat in ((nets[0], plain), (again, resumed)):
        _walk(net, flat, 2)
    torch.testing.assert_close(again.state_dict(), nets[0].state_dict())


def test_a_step_keeps_channels_last_memory_and_copies_nothing() -> None:
    net = _turned_net(True)
    flat = FlatOptimizer(list(net.parameters()), OptimConfig())
    where = [(p.data_ptr(), p.stride()) for p in flat.targets]
    _walk(net, flat, 1)
    assert [(p.data_ptr(), p.stride()) for p in flat.targets] == where
    views = flat._views(flat.first)
    assert [v.stride() for v in views] == [p.stride() for p in flat.targets]
    assert all(v.untyped_storage().data_ptr() == flat.first.data_ptr() for v in views)


def test_a_state_of_another_size_is_refused_with_any_memory() -> None:
    flat = FlatOptimizer(list(_turned_net(True).parameters()), OptimConfig())
    state = {**flat.state_dict(), "first": torch.zeros(3)}
    with pytest.raises(RuntimeError, match="first"):
        flat.load_state_dict(state)
