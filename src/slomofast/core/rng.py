"""The adapter's own randomness: one generator for the host, one for the device, both part of its state."""

from __future__ import annotations

import torch
from torch import Tensor


class Rng:
    """Random numbers that depend on the seed and on the draws made here, on nothing else.

    `host` draws decide Python control flow (an order of operations, a factor for a whole batch) without
    waiting for the device; `device` draws fill tensors where they are used.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self.device_name = device
        self.host = torch.Generator("cpu").manual_seed(seed)
        self.device = torch.Generator(device).manual_seed(seed + 1)

    def number(self, low: float = 0.0, high: float = 1.0) -> float:
        """One uniform number for the host."""
        return low + (high - low) * float(torch.rand((), generator=self.host))

    def order(self, n: int) -> list[int]:
        """A random order of n things, for the host."""
        return list(torch.randperm(n, generator=self.host).tolist())

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers on the device."""
        return torch.empty(shape, device=self.device_name).uniform_(low, high, generator=self.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers on the device."""
        return torch.empty(shape, device=self.device_name).normal_(generator=self.device)

    def moved(self, device: torch.device) -> Rng:
        """The same randomness for another device; what the device draws starts over there."""
        other = Rng(self.seed, device)
        other.load(self.state())
        return other

    def state(self) -> dict[str, Tensor]:
        """Both generators' states, as tensors that save with `weights_only=True`."""
        return {"host": self.host.get_state(), "device": self.device.get_state()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state.

        A state saved on another kind of device cannot be continued; the device generator then restarts from
        its seed.
        """
        self.host.set_state(state["host"].cpu())
        if state["device"].numel() == self.device.get_state().numel():
            self.device.set_state(state["device"].cpu())
        else:
            self.device.manual_seed(self.seed + 1)
