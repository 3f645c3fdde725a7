"""The contract of every method: predict a batch, then learn from it; state saves, loads and resets exactly."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from slomofast.core.compiled import compile_network
from slomofast.core.config import AdapterConfig
from slomofast.core.errors import ConfigError, InputError, ModelError, unknown_name
from slomofast.core.fingerprint import model_fingerprint
from slomofast.core.graphs import Recorder
from slomofast.core.inputs import checked_batch, checked_pair
from slomofast.core.optim import FlatOptimizer, OptimConfig
from slomofast.core.params import trainable
from slomofast.core.registry import MethodInfo, describe
from slomofast.core.rng import Rng
from slomofast.core.split import Classifier, Whole, input_device, last_linear, logits_of, split

PRECISIONS = ("fp32", "bf16")
INPUT_CHECKS = ("now", "deferred", "off")


@dataclasses.dataclass(frozen=True)
class Runtime:
    """How an adapter computes; none of it belongs to the method.

    Attributes:
        seed: of the adapter's own random numbers.
        precision: fp32, or bf16 autocast with fp32 weights.
        channels_last: memory format of networks and images.
        compile: `torch.compile` each network.
        graphs: record the networks' passes as CUDA graphs; nothing changes on other devices.
        check_input: `now` refuses NaN and Inf before anything happens (the host waits for the device once);
            `deferred` never waits: a bad batch is not learned from, and the next call raises; `off` trusts you.
        head: name of the last layer, where it cannot be found.
    """

    seed: int = 0
    precision: str = "fp32"
    channels_last: bool = False
    compile: bool = False
    check_input: str = "now"
    head: str | None = None
    graphs: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.check_input not in INPUT_CHECKS:
            raise unknown_name("check_input", self.check_input, INPUT_CHECKS)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ConfigError(f"seed must be an int, got {self.seed!r}")
        if not abs(self.seed) < 2**62:
            raise ConfigError(f"seed must be smaller than 2^62, got {self.seed}")


class Ensemble(nn.Module):
    """Networks and the rule that makes one prediction of theirs: what `predict` asks and `export` returns."""

    def __init__(
        self, networks: Mapping[str, nn.Module], rule: Callable[[dict[str, Tensor]], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleDict(networks)
        self.rule = rule

    def forward(self, x: Tensor) -> Tensor:
        logits = {name: network(x) for name, network in self.networks.items()}
        return self.rule(logits) if self.rule else next(iter(logits.values()))


def added(logits: dict[str, Tensor]) -> Tensor:
    """Sum of the members' logits."""
    return torch.stack([member.float() for member in logits.values()]).sum(0)


CLIPPED = 0.05  # how far outside of [0, 1] images may lie: what resizing overshoots


class Adapter(nn.Module):
    """A classifier that learns from the unlabeled batches it predicts.

    A method writes `build` (make networks, optimisers, buffers), `adapt` (one step, returns logits) and, unless one
    network named `student` predicts, `members` or `predictor`. Everything else is here, once.
    """

    student: nn.Module
    Config: ClassVar[type[AdapterConfig]] = AdapterConfig
    method: ClassVar[str] = ""
    clips_views: ClassVar[bool] = False  # whether it draws views of images, which are clipped to [0, 1]

    def __init__(self, model: nn.Module, config: AdapterConfig, runtime: Runtime) -> None:
        super().__init__()
        self.config, self.runtime = config, runtime
        self.device = input_device(model)
        self.rng = Rng(runtime.seed, self.device)
        self.steps = 0
        self.logged: dict[str, Tensor] = {}
        self.member_logits: dict[str, Tensor] = {}  # of the last step, where a method has several members
        self.sample_shape: tuple[int, ...] | None = None
        self.head_name: str | None = runtime.head
        self.source_ready = False
        self._source_size = sum(p.numel() for p in model.parameters())
        # outside the module tree: never saved, dropped once the networks are built; the user's own or, moved, a copy
        self._waiting: list[nn.Module] = [model]
        self._initial: dict[str, Any] | None = None
        self.starts_as_built = True  # whether `reset` returns to what the source model alone makes
        self._bad_input: Tensor | None = None  # deferred check: does the current batch hold NaN or Inf?
        self._bad_seen: Tensor | None = None  # ... and did any batch since the last report?
        self.source_fingerprint = ""

    # -- what a method writes ------------------------------------------------------------------------------------

    def build(self, model: Classifier) -> None:
        """Make networks, optimisers and buffers from the source model (in eval mode, weights in fp32)."""
        raise TypeError(f"{type(self).__name__} does not define build(model)")

    def adapt(self, x: Tensor) -> Tensor:
        """Predict `x`, learn from it, return the logits (B, C) of the prediction."""
        raise TypeError(f"{type(self).__name__} does not define adapt(x)")

    def members(self) -> dict[str, nn.Module]:
        """Networks that can predict, by name; the first is the one that predicts unless `predictor` says otherwise."""
        return {"student": self.student}

    def predictor(self) -> nn.Module:
        """The network (or ensemble) that predicts without learning; shares its weights with the adapter."""
        name, network = next(iter(self.members().items()))
        return Ensemble({name: network})

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take from labelled source batches what the method needs."""
        raise ConfigError(f"method {self.method!r} takes nothing from source data; drop the call of fit_source")

    @property
    def needs_source(self) -> bool:
        """Whether `fit_source` must be called before the stream, with these options."""
        return self.info.needs_source

    # -- what a user calls ---------------------------------------------------------------------------------------

    @property
    def info(self) -> MethodInfo:
        """Facts about the method."""
        return describe(self.method)

    def forward(self, x: Tensor) -> Tensor:
        """Predict a batch, then learn from it. Returns detached fp32 logits of shape (B, C)."""
        with torch.inference_mode(False):
            x = self._accepted(x)
            self._build_once(x)
            if self.needs_source and not self.source_ready:
                raise ConfigError(
                    f"method {self.method!r} needs source data once: call adapter.fit_source(loader) with an iterable "
                    "of (images, labels) before the first batch"
                )
            self.logged = {}
            skipped = self._skipped_here()
            for recorder in self._recorders():
                recorder.new_step()
            with torch.enable_grad(), self._autocast():
                logits = self.adapt(x)
            self.steps += 1
            self._report_skipped(skipped, f"step {self.steps}")
            return logits.detach().float()

    def predict(self, x: Tensor) -> Tensor:
        """Predict a batch without learning. Returns detached fp32 logits of shape (B, C)."""
        with torch.inference_mode(False):
            x = self._accepted(x)
            self._build_once(x)
            with torch.no_grad(), self._autocast():
                return self.predictor()(x).detach().float()

    def members_predict(self, x: Tensor) -> dict[str, Tensor]:
        """Logits of every member network by name, without learning."""
        with torch.inference_mode(False):
            x = self._accepted(x)
            self._build_once(x)
            with torch.no_grad(), self._autocast():
                return {name: network(x).detach().float() for name, network in self.members().items()}

    def reset(self) -> None:
        """Return to the state before the first batch, bit for bit (what `fit_source` learned stays).

        Where `start_here` was called, to the state of that moment.
        """
        if self._initial is not None:
            self.load_state_dict(self._initial)
        self._bad_input = self._bad_seen = None
        self.logged = {}

    def restart(self) -> None:
        """Return networks, optimisers and buffers to their first state; counters and random numbers go on."""
        if self._initial is not None:
            counters = {key: value for key, value in self.state_dict().items() if key.endswith(".skipped")}
            self.load_state_dict({**self._initial, **counters, "_extra_state": self.get_extra_state()})

    def train(self, mode: bool = True) -> Self:
        """Does nothing: an adapter learns in every call, and its networks keep their modes, with dropout off."""
        return self

    def export(self) -> nn.Module:
        """An ordinary network with the adapted weights: predicts what `predict` does, no longer learns."""
        self._require_built("export")
        return deepcopy(self.predictor()).eval().requires_grad_(False)

    def fit_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """Let the method take what it needs from labelled source batches (images, labels), once, before the stream."""
        with torch.inference_mode(False):
            batches = iter(loader)
            try:
                first = next(batches)
            except StopIteration:
                raise ConfigError("the source loader is empty; give at least one batch of (images, labels)") from None
            self._build_once(self._accepted(checked_pair(first)[0]))

            def all_batches() -> Iterable[tuple[Tensor, Tensor]]:
                for images, labels in map(checked_pair, itertools.chain([first], batches)):
                    yield self._accepted(images), labels.to(self.device)

            skipped = self._skipped_here()
            with torch.enable_grad(), self._autocast():
                self.learn_source(all_batches())
            self._report_skipped(skipped, "a step of fit_source")
            self.source_ready = True
            self.start_here()
        return self

    @property
    def skipped(self) -> int:
        """How many gradient steps were not applied because something was not finite."""
        return sum(int(m.skipped) for m in self.modules() if isinstance(m, FlatOptimizer))

    @property
    def steps_taken_by_gradient(self) -> bool:
        """Whether any weight of this adapter moves by gradient."""
        return any(m.targets for m in self.modules() if isinstance(m, FlatOptimizer))

    def trainable_share(self) -> float:
        """Parameters that move, as a share of the source model's."""
        self._require_built("trainable_share")
        moving = {id(p) for m in self.modules() if isinstance(m, FlatOptimizer) for p in m.targets}
        sizes = {id(p): p.numel() for p in self.parameters()}
        return sum(sizes.get(key, 0) for key in moving) / max(1, self._source_size)

    def check(self) -> None:
        """Raise if a batch accepted with `check_input="deferred"` held NaN or Inf (waits for the device)."""
        bad, self._bad_seen = self._bad_seen, None
        if bad is not None and bool(bad):
            raise InputError(
                f"a batch up to step {self.steps} held NaN or Inf: it was not learned from. Clean the input, or use "
                "check_input='now' to be told before the prediction"
            )

    # -- what methods use ----------------------------------------------------------------------------------------

    def optimize(
        self,
        name: str,
        parameters: Iterable[nn.Parameter] | nn.Module,
        lr: float | None = None,
        relative: bool | None = None,
    ) -> None:
        """Attach an optimiser called `name` over parameters (of a module: its trainable ones).

        `lr` and `relative` stand for the config's where they are given.
        """
        chosen = trainable(parameters) if isinstance(parameters, nn.Module) else list(parameters)
        if not chosen:
            warnings.warn(
                f"{self.method}: the model has no norm layers to train, so its {name!r} network stays as it is; "
                "methods that train all parameters have others (slomo_fast_star's student, cotta, rmt)",
                stacklevel=2,
            )
        optimizer = FlatOptimizer(chosen, cast(OptimConfig, self.config), lr, relative)
        self.add_module(f"optimizer_{name}", optimizer)

    def optimizer(self, name: str = "student") -> FlatOptimizer:
        """The optimiser attached under a name, for methods that make their own steps."""
        return cast(FlatOptimizer, self.get_submodule(f"optimizer_{name}"))

    def update(self, loss: Tensor, *names: str, when: Tensor | None = None, pace: Tensor | float | None = None) -> None:
        """One gradient step of the named optimisers (of all, when none is named); a loss not finite moves nothing.

        `when` (0-d bool on the device) leaves the step out where it is unset, without waiting for the device; `pace`
        multiplies its size.
        """
        chosen = [
            module
            for key, module in self.named_children()
            if isinstance(module, FlatOptimizer) and (not names or key.removeprefix("optimizer_") in names)
        ]
        targets = [p for optimizer in chosen for p in optimizer.targets]
        if not targets or not loss.requires_grad:
            return
        gradients = torch.autograd.grad(loss, targets, allow_unused=True)
        if self._bad_input is not None:
            loss = torch.where(self._bad_input, float("nan"), loss.detach())
        start = 0
        for optimizer in chosen:
            count = len(optimizer.targets)
            optimizer.step(gradients[start : start + count], loss, when, pace)
            start += count

    def plainly(self, network: nn.Module, x: Tensor) -> Tensor:
        """A network's logits from a pass that is neither compiled nor recorded: its gradient may be taken twice."""
        with torch.compiler.set_stance("force_eager") if self.runtime.compile else nullcontext():
            if isinstance(network, Classifier):
                return cast(Tensor, network.head(logits_of(network.body(x))))
            return cast(Tensor, network(x))

    def gradients_taken(self) -> None:
        """Say that all gradients of the step's passes so far are taken: a recorded pass may then serve again in it."""
        for recorder in self._recorders():
            recorder.gradients_taken()

    def usable(self, keep: Tensor) -> Tensor:
        """The mask `keep`, emptied where the deferred input check found the current batch bad."""
        return keep if self._bad_input is None else keep & ~self._bad_input

    @contextmanager
    def only_if_usable(self, buffers: Iterable[Tensor]) -> Iterator[None]:
        """What passes inside do to these tensors is undone where the deferred input check found the batch bad."""
        bad = self._bad_input
        kept = [] if bad is None else [(buffer, buffer.clone()) for buffer in buffers]
        yield
        for buffer, before in kept:
            buffer.copy_(torch.where(cast(Tensor, bad), before, buffer))

    def log(self, name: str, value: Tensor | float) -> None:
        """Keep a figure of this step for whoever listens; tensors stay on the device until read.

        A copy is kept: a buffer given here may have moved on by then.
        """
        self.logged[name] = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(float(value))

    # -- state ---------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "rng": self.rng.state(), "source_ready": self.source_ready}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps = int(state["steps"])
        self.source_ready = bool(state["source_ready"])
        self.rng.load(state["rng"])

    def save(self, path: Any) -> None:
        """Write everything needed to continue elsewhere, bit for bit (atomically)."""
        from slomofast.core.checkpoint import save_adapter

        self._require_built("save")
        save_adapter(self, path)

    # -- inside --------------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """What `.to(device)` calls: networks, buffers and random numbers move together; weights stay in fp32."""
        sample = fn(torch.zeros(0, device=self.device))
        if sample.dtype != torch.float32:
            raise ConfigError(f"an adapter's weights stay in fp32, not {sample.dtype}; use precision='bf16' for speed")
        moves = sample.device != self.device
        rng = self.rng.moved(sample.device) if moves else self.rng  # refuses, before anything moves, where it must
        super()._apply(fn, recurse)
        if moves:
            self.device, self.rng = sample.device, rng
            self._waiting = [deepcopy(model).to(self.device) for model in self._waiting]  # the user's stays
            self._record_passes()
        return self

    def prepare(self, probe: Tensor) -> Self:
        """Build the networks now from a probe batch instead of at the first call."""
        with torch.inference_mode(False):
            self._build_once(self._accepted(probe))
        return self

    def _build_once(self, probe: Tensor) -> None:
        if not self._waiting:
            return
        if torch.get_default_dtype() != torch.float32:
            raise ConfigError(
                f"torch's default dtype is {torch.get_default_dtype()}, and adapters keep their numbers in fp32; call "
                "torch.set_default_dtype(torch.float32) before the first batch"
            )
        # a large first batch is no reason for a large probe; two samples keep BatchNorm1d in train mode content
        sample = probe[:2]
        with torch.enable_grad():
            self.source_fingerprint = model_fingerprint(self._waiting[0])
            source = deepcopy(self._waiting[0]).eval().requires_grad_(False).float()
            network = self._separated(source, sample)
            if self.runtime.channels_last:
                network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.sample_shape = tuple(probe.shape[1:])
            self._warn_of_clipping(probe)
            self.classes = _class_count(network, sample)
            self.build(cast(Classifier, network))
        if self.runtime.compile:
            for member in self.children():
                if isinstance(member, Classifier | Whole):
                    compile_network(member.body if isinstance(member, Classifier) else member.model)
        self._waiting.clear()
        self._record_passes()
        self.start_here()
        self.starts_as_built = True

    def _warn_of_clipping(self, x: Tensor) -> None:
        """Say once that views of normalised images would be of other images."""
        low, high = (float(end) for end in x.aminmax()) if self.clips_views and x.numel() else (0.0, 1.0)
        if low < -CLIPPED or high > 1 + CLIPPED:
            warnings.warn(
                f"{self.method} draws views of images in [0, 1], and these lie in [{low:.2f}, {high:.2f}]: the views "
                "will be clipped. Give images in [0, 1] and let the network normalise them: "
                "slomofast.models.Normalised(model, mean, std)",
                stacklevel=2,
            )

    def _record_passes(self) -> None:
        """Let CUDA graphs do the networks' passes; anew when the networks have moved."""
        for member in self.children():
            if isinstance(member, Classifier):
                on = self.runtime.graphs and self.device.type == "cuda"
                member.recorder = Recorder(member.body, self.runtime.precision) if on else None

    def _recorders(self) -> list[Recorder]:
        found = (getattr(member, "recorder", None) for member in self.children())
        return [recorder for recorder in found if isinstance(recorder, Recorder)]

    def _separated(self, source: nn.Module, sample: Tensor) -> nn.Module:
        try:
            with torch.no_grad():
                logits = logits_of(source(sample))
        except (RuntimeError, ValueError, IndexError) as error:
            raise ModelError(f"the model cannot process a batch of shape {tuple(sample.shape)}: {error}") from error
        if logits.dim() != 2 or logits.shape[0] != sample.shape[0]:
            raise ModelError(f"the model must return logits of shape (batch, classes), got {tuple(logits.shape)}")
        if logits.shape[1] < 2:
            raise ModelError(
                "the model returns one logit, and one class needs no prediction; for yes or no give it two, "
                "such as torch.cat([-z, z], 1) / 2"
            )
        try:
            if self.head_name is None and not isinstance(source, Classifier | nn.Linear):
                self.head_name = last_linear(source, sample)
            return split(source, sample, self.head_name)
        except ModelError:
            if self.info.needs_features or self.runtime.head is not None:
                raise
            return Whole(source)

    @property
    def initial_state(self) -> dict[str, Any] | None:
        """The state `reset` returns to; None before the first batch."""
        return self._initial

    def start_here(self) -> None:
        """Make the present state the one that `reset` returns to."""
        self._initial = {
            key: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else deepcopy(value)
            for key, value in self.state_dict().items()
        }
        self.starts_as_built = False

    def _require_built(self, what: str) -> None:
        if self._waiting:
            raise ConfigError(
                f"{what} needs the networks, which are made from the first batch: call the adapter, or "
                "prepare(batch), first"
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.runtime.precision == "bf16")

    def _accepted(self, x: Any) -> Tensor:
        """The batch, checked and moved to where the networks are; refuses what must not be learned from."""
        x = checked_batch(x, self.sample_shape)
        x = x.detach().to(self.device, torch.float32)
        if x.is_inference():
            x = x.clone()
        if self.runtime.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return self._finite(x)

    def _finite(self, x: Tensor) -> Tensor:
        """The batch if it is finite. Deferred: a bad one becomes zeros and is marked, and nothing is learned from it.

        What a method does whatever the batch, such as averaging weights or returning some to the source, goes on.
        """
        if self.runtime.check_input == "off":
            return x
        if self.runtime.check_input == "now":
            if not bool(torch.isfinite(x).all()):
                raise InputError("the batch holds NaN or Inf; clean the input (nothing was learned from it)")
            return x
        idle = self.device.type == "cpu" or torch.cuda.current_stream(self.device).query()
        if idle:  # the verdict on earlier batches is there without waiting
            self.check()
        self._bad_input = ~torch.isfinite(x).all()
        self._bad_seen = self._bad_input if self._bad_seen is None else self._bad_seen | self._bad_input
        return torch.where(self._bad_input, 0.0, x)

    def _skipped_here(self) -> int:
        """`skipped` on the CPU; zero elsewhere, where reading it would wait for the device."""
        return self.skipped if self.device.type == "cpu" else 0

    def _report_skipped(self, before: int, what: str) -> None:
        if (skipped := self._skipped_here()) > before:
            warnings.warn(
                f"{self.method}: {what} was not finite and was not applied ({skipped} so far)",
                stacklevel=3,
            )


@torch.no_grad()
def _class_count(network: nn.Module, sample: Tensor) -> int:
    return int(network(sample).shape[-1])
