"""Orders that come out the same on every machine: raw 64-bit draws, sorted.

Only the raw output of a counter-based generator is used, because that is the part numpy promises never to
change; a shuffle is the stable sort of one draw per item.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_WORD = 2**32


def generator(seed: int, *key: int) -> np.random.Philox:
    """A bit generator for one purpose of one run; `key` tells the purposes apart. Any integer is a seed."""
    words = [seed % _WORD, (seed // _WORD) % _WORD, *(int(k) for k in key)]
    return np.random.Philox(np.random.SeedSequence(words))


def shuffled(size: int, seed: int, *key: int) -> np.ndarray:
    """A permutation of range(size): int64, shape (size,).

    >>> sorted(shuffled(5, 0).tolist())
    [0, 1, 2, 3, 4]
    """
    draws = generator(seed, *key).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def uniforms(size: int, seed: int, *key: int) -> np.ndarray:
    """Numbers in [0, 1) with 53 random bits each: float64, shape (size,)."""
    draws = np.asarray(generator(seed, *key).random_raw(size), dtype=np.uint64)
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bursts(labels: np.ndarray, delta: float, slots: int, seed: int, *key: int) -> np.ndarray:
    """An order of the samples in which labels come in bursts: int64 permutation, shape (n,).

    The images of every class are dealt to `slots` consecutive stretches of time with shares drawn from a
    symmetric Dirichlet(delta): the smaller delta, the fewer stretches a class appears in. Inside a stretch
    the classes stand one after the other in random order; inside a class the given order is kept.
    """
    rng = np.random.Generator(generator(seed, *key))
    classes = np.unique(labels)
    stretches: list[list[np.ndarray]] = [[] for _ in range(slots)]
    for label in classes:
        members = np.flatnonzero(labels == label)
        share = rng.dirichlet(np.full(slots, delta))
        cuts = np.floor(np.cumsum(share)[:-1] * len(members) + 0.5).astype(np.int64)
        for stretch, part in zip(stretches, np.split(members, np.clip(cuts, 0, len(members))), strict=True):
            stretch.append(part)
    ordered: list[np.ndarray] = []
    for number, stretch in enumerate(stretches):
        ordered.extend(stretch[k] for k in shuffled(len(stretch), seed, *key, number))
    return np.concatenate(ordered) if ordered else np.zeros(0, np.int64)


def spread(size: int, count: int) -> np.ndarray:
    """`count` indices spaced evenly over range(size): int64, sorted, the same for every seed.

    Even spacing keeps all classes in the sample where images are stored class by class.
    """
    return ((2 * np.arange(count, dtype=np.int64) + 1) * size) // (2 * count) if count else np.zeros(0, np.int64)


def walk(transitions: np.ndarray, steps: int, start: int, draws: Iterable[float]) -> list[int]:
    """States of a Markov chain after `start`, one per draw in [0, 1): `steps` states including the start."""
    cumulative = np.cumsum(transitions, axis=1)
    states = [start]
    for draw in draws:
        if len(states) == steps:
            break
        row = cumulative[states[-1]]
        states.append(int(min(np.searchsorted(row, draw * row[-1], side="right"), len(row) - 1)))
    return states
