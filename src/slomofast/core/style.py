"""The style of a batch: how strongly the channels of early layers vary, whatever the images show."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from slomofast.core.errors import ConfigError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Style(nn.Module):
    """Log variance of each channel of some early layers over a batch: what it looks like, whatever it shows.

    Args:
        network: looked at are convolutions, in the order in which they run; where there are none, its input.
        probe: a batch of the kind the network takes.
        which: of the convolutions; the network does not run beyond the last of them.
    """

    values: Tensor

    def __init__(self, network: nn.Module, probe: Tensor, which: slice) -> None:
        super().__init__()
        convolutions = [name for name, module in network.named_modules() if isinstance(module, _ConvNd)]
        order: list[str] = []
        watch(network, convolutions, probe, lambda name, _: order.append(name))
        self.names = list(dict.fromkeys(order))[which]
        self.network = network if self.names else nn.Identity()
        # how many values of an image make a channel's variance; known from the network, hence not saved
        values = self._read(probe, lambda y: y.new_full((y.shape[1],), y[0, 0].numel(), dtype=torch.float32))
        self.register_buffer("values", torch.cat(values), persistent=False)
        self.size = len(self.values)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance (B, D) of each image's channels."""
        found = self._read(
            x, lambda y: torch.stack(torch.var_mean(y.float().reshape(*y.shape[:2], -1), 2, correction=0))
        )
        variance, mean = torch.cat(found, 2)
        return mean, variance

    def _read(self, x: Tensor, read: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What `read` makes of each output, at once: the next layer may write to the same memory."""
        if not self.names:
            return [read(x)]
        found: list[Tensor] = []
        watch(self.network, self.names, x, lambda _, y: found.append(read(y)), len(self.names))
        return found

    def pooled(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The style (D,) of images with these moments (B, D); not a number where a channel has a single value."""
        total = len(mean) * self.values
        biased = variance.mean(0) + mean.var(0, correction=0)
        return (biased * (total / (total - 1))).clamp_min(1e-8).log()

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(*self.moments(x))


class _Enough(Exception):
    """Ends a pass whose rest nobody looks at."""


@torch.no_grad()
def watch(
    network: nn.Module, names: Sequence[str], x: Tensor, look: Callable[[str, Tensor], None], most: int | None = None
) -> None:
    """Pass a batch and show `look` the outputs of the named layers as they come; the pass ends at number `most`."""
    numbers = count(1)

    def show(name: str, output: Tensor) -> None:
        look(name, output)
        if next(numbers) == most:
            raise _Enough

    hooks = [
        network.get_submodule(name).register_forward_hook(lambda *seen, name=name: show(name, seen[-1]))
        for name in names
    ]
    try:
        network(x)
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()


def vgg19_layers(path: str) -> nn.Module:
    """The first four convolutions of VGG-19 for images in [0, 1], from a file of torchvision's weights."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        pairs = [(state[f"features.{n}.weight"], state[f"features.{n}.bias"]) for n in (0, 2, 5, 7)]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ConfigError(f"vgg19={path!r} does not hold the weights of torchvision's vgg19: {error}") from error
    standard = nn.BatchNorm2d(3, eps=0.0, affine=False)
    standard.running_mean, standard.running_var = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD).square()
    convolutions = []
    for weight, bias in pairs:
        layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, device="meta")  # draws no random numbers
        layer.load_state_dict({"weight": weight.float(), "bias": bias.float()}, assign=True)
        convolutions.append(layer)
    first, second, third, fourth = convolutions
    layers = [standard, first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), third, nn.ReLU(), fourth]
    return nn.Sequential(*layers).eval().requires_grad_(False)
