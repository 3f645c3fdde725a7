"""Any classifier as features and head, found by watching one batch go through: no architecture is named here."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from slomofast.core.errors import ModelError


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, an object or dict with `logits`, or a tuple led by them."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict) and isinstance(output.get("logits"), Tensor):
        return output["logits"]
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ModelError(
        f"the model returned {type(output).__name__}; expected a tensor of logits, an object or dict with `logits`, "
        "or a tuple that begins with them. Wrap the model in a module that returns logits."
    )


class Classifier(nn.Module):
    """A body that turns images into features (B, D), and a head that turns features into logits (B, C).

    Build one yourself for models whose last layer is not an `nn.Linear`:

    >>> net = Classifier(nn.Flatten(), nn.Linear(12, 3))
    >>> net(torch.zeros(2, 3, 2, 2)).shape
    torch.Size([2, 3])
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.recorder: Callable[[Tensor], Tensor] | None = None  # stands in for the body's passes where it is set

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: (B, D)."""
        return logits_of(self.body(x)) if self.recorder is None else self.recorder(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits from one pass."""
        z = self.features(x)
        return z, self.head(z)

    @property
    def classes(self) -> int | None:
        """Number of classes, where the head says so."""
        return getattr(self.head, "out_features", None)


class Whole(nn.Module):
    """A classifier that stays in one piece: for methods that need logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))


@torch.no_grad()
def last_linear(model: nn.Module, probe: Tensor) -> str:
    """Name of the linear layer that runs last on a probe batch and makes the logits."""
    order: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        width = logits_of(model(probe)).shape[-1]
    finally:
        for hook in hooks:
            hook.remove()
    candidates = [name for name in order if model.get_submodule(name).out_features == width]
    if not candidates or candidates[-1] == "":
        raise ModelError(
            "no linear layer makes the model's logits, so features and head cannot be told apart. Pass head='name.of."
            "the.last.layer', or build slomofast.Classifier(body, head) yourself."
        )
    return candidates[-1]


@torch.no_grad()
def split(model: nn.Module, probe: Tensor, head: str | None = None) -> Classifier:
    """A copy of `model` as body and head, checked to give the same logits on `probe`.

    Args:
        model: any classifier; it is not changed.
        probe: a batch of the kind the model takes.
        head: name of the last layer, where it cannot be found.
    """
    if isinstance(model, Classifier):
        return deepcopy(model).eval()
    body = deepcopy(model).eval()
    expected = logits_of(body(probe))
    if isinstance(body, nn.Linear):
        return Classifier(nn.Identity(), body)
    name = head or last_linear(body, probe)
    try:
        layer = body.get_submodule(name)
    except AttributeError:
        names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        raise ModelError(f"the model has no layer {name!r} to use as head. Linear layers: {', '.join(names)}") from None
    parent, _, attribute = name.rpartition(".")
    setattr(body.get_submodule(parent), attribute, nn.Identity())
    found = Classifier(body, layer)
    try:
        actual = found(probe)
        z = found.features(probe)
    except (RuntimeError, ModelError, TypeError) as error:
        raise _not_separable(name, str(error)) from error
    same = actual.shape == expected.shape and torch.allclose(actual, expected, rtol=1e-3, atol=1e-4)
    if not same or z.dim() != 2:
        raise _not_separable(name, "head(body(x)) differs from model(x)" if z.dim() == 2 else "features are no vectors")
    return found


def _not_separable(name: str, why: str) -> ModelError:
    return ModelError(
        f"layer {name!r} cannot be separated as the head: {why}. Pass head='name' of the layer whose output are the "
        "logits, or build slomofast.Classifier(body, head) yourself."
    )


def input_device(model: nn.Module) -> torch.device:
    """Where the model lives: the device of its first parameter or buffer (CPU if it has none)."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


@torch.no_grad()
def feature_size(model: Classifier, shape: tuple[int, ...] | None, device: torch.device) -> int:
    """Length of the feature vectors that the head sees, for samples of `shape`."""
    return int(model.features(torch.zeros(2, *(shape or ()), device=device)).shape[1])
