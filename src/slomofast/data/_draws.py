"""Random numbers that belong to an image, not to the order in which images are asked for."""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread every bit of a 64-bit counter over the whole word (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stable_hash(*parts: object) -> str:
    """16 hex digits from the printed forms of `parts`, the same in every process and on every machine."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def uniform(key: str, index: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for every image of `index`, float32 (n, count): row i depends on (key, index[i]).

    >>> bool((uniform("a", np.array([7, 8]), 3)[1] == uniform("a", np.array([8]), 3)[0]).all())
    True
    """
    start = np.uint64(int(stable_hash(key), 16))
    rows = _mix(start + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    cells = rows[:, None] + np.arange(1, count + 1, dtype=np.uint64)[None, :] * _GOLDEN
    return (_mix(cells) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
