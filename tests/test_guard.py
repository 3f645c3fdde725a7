"""The guard: passes a healthy adapter through, notices one that goes astray, and does what it was told."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import slomofast as sf
from slomofast.core.adapter import Runtime
from slomofast.guard import Alarm
from slomofast.methods.tent import Tent
from slomofast.testing import batches, tiny_net


class Astray(Tent):
    """TENT whose network answers `answer` to everything once `steps` is above `until`."""

    until = 12
    answer = 0

    def adapt(self, x: Tensor) -> Tensor:
        logits = super().adapt(x)
        if self.steps + 1 > self.until:
            with torch.no_grad():
                self.student.head.bias[self.answer] = 1e4  # type: ignore[union-attr, index]
        return logits


def astray(model: nn.Module, until: int = 12) -> Astray:
    adapter = Astray(model, Tent.Config.build({}), Runtime())
    adapter.method, adapter.until = "tent", until  # type: ignore[misc]
    return adapter


def stream(count: int, size: int = 96) -> Iterator[Tensor]:
    return iter(batches(count, size))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) for key, value in one.items() if isinstance(value, Tensor)
    )


def test_a_healthy_adapter_passes_through() -> None:
    net = tiny_net()
    guard, plain = sf.Guard(sf.adapt(net, "tent"), net, every=2), sf.adapt(net, "tent")
    for x in stream(20):
        assert torch.equal(guard(x), plain(x))
    assert guard.alarms == [] and not guard.frozen and guard.agreement > 0.9
    assert same(guard.adapter.state_dict(), plain.state_dict())
    assert torch.equal(guard.predict(x), plain.predict(x))


def test_one_that_goes_astray_is_rolled_back_to_a_state_older_than_a_window() -> None:
    net, heard = tiny_net(), []
    guard = sf.Guard(astray(net), net, every=1, window=4, on_alarm=heard.append)
    states, taken = {}, stream(30)
    for number in range(1, 13):
        guard(next(taken))
        states[number] = {k: v.clone() for k, v in guard.adapter.state_dict().items() if isinstance(v, Tensor)}
    with pytest.warns(UserWarning, match=r"tent agrees with the source on \d+% .* after 1[3-7] batches: roll_back"):
        while not guard.alarms:
            x = next(taken)
            logits = guard(x)
    (alarm,) = guard.alarms
    assert alarm == heard[0] and alarm.action == "roll_back" and alarm.agreement < 0.95 and 13 <= alarm.step <= 17
    assert guard.adapter.steps == 8  # of 8 and 12 the older
    assert same(states[8], {k: v for k, v in guard.adapter.state_dict().items() if isinstance(v, Tensor)})
    assert torch.equal(logits, guard.adapter.predict(x))  # not what the network that went astray said
    assert logits.argmax(1).unique().numel() > 1


def test_reset_returns_to_the_first_state_and_so_does_a_roll_back_with_nothing_to_roll_back_to() -> None:
    for action, until in (("reset", 12), ("roll_back", 0)):
        net = tiny_net()
        guard = sf.Guard(astray(net, until), net, action, every=1, window=2)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="reset"):
            for x in stream(20):
                guard(x)
                if guard.alarms:
                    break
        assert guard.adapter.steps == 0
        assert same(guard.adapter.state_dict(), guard.adapter._initial or {})


def test_freezing_ends_learning_and_thawing_begins_it_again() -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net), net, "freeze", every=1, window=2)
    with pytest.warns(UserWarning, match="freeze"):
        for x in stream(20):
            guard(x)
    assert guard.frozen and [alarm.action for alarm in guard.alarms] == ["freeze"]
    before = {k: v.clone() for k, v in guard.adapter.state_dict().items() if isinstance(v, Tensor)}
    assert torch.equal(guard(x), guard.adapter.predict(x))
    assert same(before, {k: v for k, v in guard.adapter.state_dict().items() if isinstance(v, Tensor)})
    guard.thaw()
    guard(x)
    assert not guard.frozen and len(guard.alarms) == 1
    assert guard.adapter.steps == 1 + 10  # the older of the states after 10 and 12 batches
    guard.freeze()
    steps = guard.adapter.steps
    guard(x)
    assert guard.adapter.steps == steps


def test_a_warning_changes_nothing() -> None:
    net = tiny_net()
    guard, plain = sf.Guard(astray(net), net, "warn", every=1, window=2), astray(net)
    with pytest.warns(UserWarning, match="warn"):
        for x in stream(20):
            assert torch.equal(guard(x), plain(x))
    assert len(guard.alarms) > 1 and not guard.frozen and not guard._good


@pytest.mark.parametrize("action", ["roll_back", "reset"])
def test_the_last_alarm_ends_learning(action: str) -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net, until=4), net, action, every=1, window=2, most=2)  # type: ignore[arg-type]
    with pytest.warns(UserWarning):
        for x in stream(40):
            guard(x)
    assert [alarm.action for alarm in guard.alarms] == [action, "reset and freeze"] and guard.frozen
    assert guard.adapter.steps == 0  # the state rolled back to led there again
    assert guard(x).argmax(1).unique().numel() > 1
    forever = sf.Guard(astray(net, until=4), net, action, every=1, window=2, most=0)  # type: ignore[arg-type]
    with pytest.warns(UserWarning):
        for x in stream(40):
            forever(x)
    assert len(forever.alarms) > 2 and not forever.frozen


def test_alarms_far_apart_are_each_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net, until=12), net, every=1, window=2, most=2)
    monkeypatch.setattr("slomofast.guard.SOON", 1)
    with pytest.warns(UserWarning):
        for x in stream(40):
            guard(x)
    assert len(guard.alarms) > 2 and not guard.frozen  # more than two batches between them
    assert {alarm.action for alarm in guard.alarms} == {"roll_back"}


def test_alarms_before_a_thaw_do_not_count() -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net, until=12), net, every=1, window=2, most=2)
    with pytest.warns(UserWarning):
        for x in stream(40):
            known = len(guard.alarms)
            guard(x)
            if len(guard.alarms) > known:
                guard.thaw()
    assert len(guard.alarms) > 2 and not guard.frozen


def test_the_agreement_by_hand() -> None:
    net = tiny_net()
    guard = sf.Guard(sf.adapt(net, "tent"), net, reference="source", surest=0.5)
    reference = torch.tensor([[9.0, 0, 0], [0, 8.0, 0], [0.1, 0, 0], [0, 0.1, 0]])
    guard._references["source"] = lambda x: reference  # type: ignore[assignment, return-value]
    x = torch.zeros(4, 1)

    def looked(logits: Tensor) -> tuple[int, int]:
        guard._look(x, logits)
        return guard._looks[-1]

    assert looked(reference) == (2, 2)
    assert looked(reference[[0, 1, 3, 2]]) == (2, 2)  # the other half does not count
    assert looked(reference[[1, 1, 2, 3]]) == (1, 2)
    broken = reference.clone()
    broken[0, 0] = torch.inf
    broken[1, 2] = torch.nan
    assert looked(broken) == (0, 2)
    assert guard.agreement == 5 / 8


def test_small_batches_are_looked_at_together_until_there_are_enough_answers() -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net, until=0), net, every=1, window=2, surest=0.25)
    taken = stream(40, 16)
    for _ in range(11):
        guard(next(taken))
    assert guard.alarms == [] and guard.agreement < 0.8  # 44 answers
    with pytest.warns(UserWarning, match="after 12 batches"):
        guard(next(taken))
    healthy = sf.Guard(sf.adapt(net, "tent"), net, every=1, window=2)
    for x in taken:
        healthy(x)
    assert len(healthy._looks) == 12 and healthy._compared == 48


def test_small_batches_and_networks_without_batch_norm_are_held_against_the_source() -> None:
    def asked(net: nn.Module, size: int, **options: Any) -> list[str]:
        guard = sf.Guard(sf.adapt(net, "tent"), net, every=1, **options)
        for name, one in guard._references.items():
            one.register_forward_hook(lambda *_, name=name: names.append(name))
        names: list[str] = []
        guard(batches(1, size)[0])
        return names

    assert asked(tiny_net("batch"), 16) == ["batch"]
    assert asked(tiny_net("batch"), 15) == ["source"]
    assert asked(tiny_net("batch"), 15, reference="batch") == ["batch"]
    assert asked(tiny_net("batch"), 16, reference="source") == ["source"]
    assert asked(tiny_net("layer"), 16) == ["source"]


def test_the_reference_computes_as_the_adapter_and_never_complains_of_input() -> None:
    net = tiny_net()
    adapter = sf.adapt(net, "tent", precision="bf16", seed=3, check_input="deferred")
    guard = sf.Guard(adapter, net, every=1)
    runtime = guard._references["batch"].runtime
    assert (runtime.precision, runtime.seed, runtime.check_input) == ("bf16", 3, "off")
    good, bad = batches(1, 24)[0], torch.full_like(batches(1, 24)[0], torch.nan)
    guard(good)
    guard(bad)
    with pytest.raises(sf.InputError):
        guard.check()
    guard(good)


def test_reset_forgets_what_was_watched() -> None:
    net = tiny_net()
    guard = sf.Guard(astray(net), net, every=1, window=2, most=1)
    with pytest.warns(UserWarning):
        for x in stream(20):
            guard(x)
    assert guard.frozen
    guard.reset()
    assert (guard.seen, guard.frozen, guard.alarms, guard._good, guard.agreement) == (0, False, [], [], 1.0)
    assert guard.adapter.steps == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action": "rollback"}, "did you mean 'roll_back'"),
        ({"reference": "bn"}, "unknown reference 'bn'"),
        ({"every": 0}, "every is 0; give a whole number from 1"),
        ({"window": 2.5}, "window is 2.5"),
        ({"most": -1}, "most is -1; give a whole number from 0"),
        ({"lowest": 80}, "lowest is 80; give a share"),
        ({"surest": 0.0}, "surest is 0.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    net = tiny_net()
    with pytest.raises(sf.ConfigError, match=words):
        sf.Guard(sf.adapt(net, "tent"), net, **options)


def test_the_wrong_adapter_or_model_is_refused() -> None:
    net = tiny_net()
    with pytest.raises(sf.ModelError, match="expected an adapter, as sf"):
        sf.Guard(net, net)  # type: ignore[arg-type]
    adapter = sf.adapt(net, "tent", probe=batches(1, 8)[0])
    with pytest.raises(sf.ModelError, match="made from another model"):
        sf.Guard(adapter, tiny_net("group"))
    sf.Guard(adapter, net)


@pytest.fixture(scope="module")
def letters() -> tuple[nn.Module, Any]:
    return sf.load_source("glyphs"), sf.open_data("glyphs", size=50)


def played(letters: tuple[nn.Module, Any], adapter: Any, cycles: int = 2) -> list[float]:
    """Errors of the steps of a stream of returning conditions."""
    stream = sf.stream(sf.make_setting("cyclic", cycles=cycles), letters[1], batch_size=50, images_per_domain=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = list(sf.evaluate(adapter, stream, timing=False))
    assert isinstance(adapter, sf.Adapter) or all("guard_agreement" in step.diagnostics for step in steps)
    return [float((step.logits.argmax(1) != step.target).float().mean()) for step in steps]


@pytest.mark.parametrize("method", ["tent", "slomo_fast_star"])
def test_on_letters_it_lets_those_pass_that_are_well(letters: tuple[nn.Module, Any], method: str) -> None:
    net, _ = letters
    guard = sf.Guard(sf.adapt(net, method), net, every=1)
    played(letters, guard)
    assert guard.alarms == []


def test_on_letters_a_collapse_is_ended_early(letters: tuple[nn.Module, Any]) -> None:
    net, _ = letters
    free = played(letters, sf.adapt(net, "tent", lr=0.1), cycles=4)
    guard = sf.Guard(sf.adapt(net, "tent", lr=0.1), net, every=1)
    watched = played(letters, guard, cycles=4)
    assert guard.alarms and all(isinstance(alarm, Alarm) for alarm in guard.alarms)
    assert sum(free[-15:]) / 15 > 0.45 > 0.3 > sum(watched[-15:]) / 15
