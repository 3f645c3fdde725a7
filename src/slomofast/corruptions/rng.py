"""Random numbers that belong to an image: row i depends on sample i alone, never on its batch.

Every number is a hash of (seed, stream, sample, draw, cell). There is no state to carry between
batches or workers, and the hashed integers are the same on every device.
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache

import torch
from torch import Tensor

_ODD = -7046029254386353131  # the 64-bit golden ratio, as a signed integer
_MIX_A, _MIX_B = -4658895280553007687, -7723592293110705685


class SampleRng:
    """Draws one row of random numbers per sample.

    Two generators with the same seed and stream give sample `index[i]` the same row, whatever else is in
    the batch. Successive calls are successive draws and independent of each other.

    Args:
        seed: any integer, negative ones included.
        index: identity of each sample, int64, shape (B,). Its device is where the numbers appear.
        stream: a name that keeps unrelated uses of one seed apart.

    >>> one = SampleRng(0, torch.tensor([7, 8])).uniform(3)
    >>> two = SampleRng(0, torch.tensor([8])).uniform(3)
    >>> bool((one[1] == two[0]).all())
    True
    """

    def __init__(self, seed: int, index: Tensor, stream: str = "") -> None:
        self.index = index.to(torch.int64)
        self.device = index.device
        self._start = (_wrap(seed), zlib.crc32(stream.encode()))
        self._key: Tensor | None = None  # made at the first draw: half of the corruptions never draw
        self._draws = 0

    def _sample_keys(self) -> Tensor:
        if self._key is None:
            start = _scramble(torch.tensor(self._start))
            start = _scramble(start[:1] + start[1:] * _ODD)
            self._key = _scramble(_scramble(self.index) + start.to(self.device))
        return self._key

    def bits(self, *shape: int) -> Tensor:
        """32 random bits per cell as int32, shape (B, *shape)."""
        self._draws += 1
        key = _scramble(self._sample_keys() + _wrap(self._draws * _ODD))
        low, high = key.to(torch.int32)[:, None], (key >> 32).to(torch.int32)[:, None]
        cells = _cells(math.prod(shape), self.device)
        x = cells + low  # int32 arithmetic wraps, as a hash wants it
        x ^= (x >> 16).bitwise_and_(0xFFFF)
        x *= 0x7FEB352D
        x ^= (x >> 15).bitwise_and_(0x1FFFF)
        x ^= high
        x *= -2073254261  # 0x846CA68B
        x ^= (x >> 16).bitwise_and_(0xFFFF)
        return x.view(len(self.index), *shape)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers in [low, high), float32, shape (B, *shape)."""
        unit = (self.bits(*shape) >> 8).bitwise_and_(0xFFFFFF).to(torch.float32)
        return unit.mul_((high - low) * 2.0**-24).add_(low)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (at most 5.4 in size), float32, shape (B, *shape)."""
        symmetric = (self.bits(*shape) >> 8).to(torch.float32).add_(0.5).mul_(2.0**-23)
        return symmetric.erfinv_().mul_(math.sqrt(2))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform integers in [low, high), int64, shape (B, *shape); the range may span up to 2**24."""
        unit = (self.bits(*shape) >> 8).bitwise_and_(0xFFFFFF).to(torch.int64)
        return (unit * (high - low) >> 24).add_(low)


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _scramble(x: Tensor) -> Tensor:
    """Mix int64 values so that every input bit reaches every output bit."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX_A
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX_B
    return x ^ ((x >> 31) & (2**33 - 1))


@lru_cache(maxsize=64)
def _cells(count: int, device: torch.device) -> Tensor:
    """Cell numbers spread over 32 bits, shape (1, count)."""
    spread = (torch.arange(count, dtype=torch.int64) * 0x9E3779B1) & (2**32 - 1)
    return spread.to(torch.int32)[None].to(device)
