"""Continually changing corruptions: one corruption fades out while another fades in, at constant difficulty.

Along a transition the two severities follow a path on which a reference model keeps the same average accuracy. The
path comes from a matrix of accuracies for each ordered pair of corruptions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import CANONICAL
from slomofast.data.catalog import LARGE, DataSet
from slomofast.streams.options import option
from slomofast.streams.order import spread
from slomofast.streams.ordering import as_float
from slomofast.streams.schedule import Layout, Segment, Setting, register

_EASY = tuple(name for name in CANONICAL if name != "brightness")
LEVELS: dict[str, tuple[float, tuple[str, ...]]] = {
    "easy": (40.0, _EASY),
    "medium": (20.0, _EASY[:-1]),
    "hard": (0.0, ("gaussian_noise", "shot_noise", "impulse_noise", "contrast")),
}
"""Target accuracy in percent and corruptions of each level."""

_PUBLISHED = {"elastic_transform": "elastic", "jpeg_compression": "jpeg"}  # names in the published file of matrices

Path = tuple[tuple[float, float], ...]


def pair_name(first: str, second: str) -> str:
    """The domain name of an ordered pair of corruptions."""
    return f"{first}+{second}"


def pair_keys(first: str, second: str) -> tuple[str, ...]:
    """Names a pair may have in a file of matrices or paths: `a+b`, or as in the published one, `n1_a_n2_b`."""
    short = [_PUBLISHED.get(name, name) for name in (first, second)]
    return pair_name(first, second), "n1_{}_n2_{}".format(*short), f"n1_{first}_n2_{second}"


def severity_path(matrix: np.ndarray | Iterable[Iterable[float]], target: float) -> list[tuple[int, int]]:
    """The path of notches (i, j) from (i0, 0) to (0, j) whose mean accuracy is nearest to `target`.

    `matrix[i][j]` is the accuracy (percent) with the first corruption at notch i and the second at notch j. Each
    move lowers i or raises j by one; at every notch the move is taken after which the mean accuracy of the
    whole rest of the path is nearer to the target (raising j on ties). The start i0 is chosen the same way.
    """
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise ConfigError(f"an accuracy matrix must be square with at least 2 notches, got shape {values.shape}")
    size = len(values)
    rows = values.tolist()
    sums = [rows[0][:]] + [[0.0] * size for _ in range(size - 1)]
    lengths = [[1] * size for _ in range(size)]
    down = [[False] * size for _ in range(size)]
    for i in range(1, size):
        for j in reversed(range(size)):
            here = rows[i][j]
            lower = (sums[i - 1][j] + here, lengths[i - 1][j] + 1)
            if j + 1 < size:
                further = (sums[i][j + 1] + here, lengths[i][j + 1] + 1)
                down[i][j] = abs(lower[0] / lower[1] - target) < abs(further[0] / further[1] - target)
            else:
                further, down[i][j] = lower, True
            sums[i][j], lengths[i][j] = lower if down[i][j] else further
    i = min(range(1, size), key=lambda start: abs(sums[start][0] / lengths[start][0] - target))
    j = 0
    path = [(i, j)]
    while i:
        i, j = (i - 1, j) if down[i][j] else (i, j + 1)
        path.append((i, j))
    return path


def severities(notches: Iterable[tuple[int, int]], size: int) -> Path:
    """Notches of a matrix of that size as severities from 0 to 5."""
    step = 5.0 / (size - 1)
    return tuple((i * step, j * step) for i, j in notches)


def staircase(notches: int = 10) -> Path:
    """A path that needs no accuracies: from (5, 0) to (0, 5), lowering and raising in turn."""
    found = [(notches, 0)]
    for k in range(notches):
        found += [(notches - k, k + 1), (notches - k - 1, k + 1)]
    return severities(found, notches + 1)


def lookup(matrices: Mapping[str, Any], first: str, second: str) -> np.ndarray:
    """The matrix of a pair; keys may be `a+b` or, as in the published file, `n1_a_n2_b`."""
    for key in pair_keys(first, second):
        if key in matrices:
            return np.asarray(matrices[key], dtype=np.float64)
    raise ConfigError(f"no accuracy matrix for {pair_name(first, second)!r}; have {len(matrices)} pairs")


@register("ccc")
@dataclass(frozen=True)
class Ccc(Setting):
    """Two corruptions at a time, one fading out while the other fades in, at constant difficulty.

    The data set must be able to apply two corruptions (`load_pair`). Severity paths come from `paths`, from
    `matrices`, or from the matrices the stream was given; `calibrated=False` uses a plain staircase instead.
    """

    needs = ("matrices",)
    rule = "samples"

    level: str = option("medium", "difficulty", kind="str", choices=tuple(LEVELS))
    speed: int = option(1000, "images at each notch; fewer change faster", kind="int", low=1)
    images: int = option(
        7_500_000, "images in all, rounded up to whole notches; fewer where notches are cut short", kind="int", low=1,
        high=10**9,
    )  # fmt: skip
    target: float | None = option(None, "accuracy to keep; the level's own if unset", kind="float?", low=0, high=100)
    corruptions: tuple[str, ...] | None = option(None, "names; the level's own if unset", kind="names?")
    reachable: bool = option(
        True, "of the level's own, leave out those that stay above a `target` of yours at severity 5", kind="bool"
    )
    order_seed: int | None = option(None, "seed of the corruptions' order; the run's if unset", kind="int?")
    calibrated: bool = option(True, "follow measured accuracies; false for a plain staircase", kind="bool")
    paths: Any = option(None, "severity path of each pair, {a+b: [[s1, s2], ...]}", kind="paths")
    matrices: Any = option(None, "accuracy matrices by pair; turned into paths", kind="matrices")

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.paths
        if self.matrices is not None:
            if self._drops:
                low = reachable(self.matrices, self.accuracy)
                object.__setattr__(self, "corruptions", tuple(n for n in LEVELS[self.level][1] if n in low))
            found = {name: self._path(matrix) for name, matrix in self.matrices.items()}
        if found is not None:
            object.__setattr__(self, "paths", _checked_paths(found))
        object.__setattr__(self, "matrices", None)

    def requirements(self) -> tuple[str, ...]:
        """Matrices, unless the paths are known or not wanted."""
        return self.needs if self.calibrated and self.paths is None else ()

    @property
    def accuracy(self) -> float:
        """The target accuracy in percent."""
        return LEVELS[self.level][0] if self.target is None else self.target

    @property
    def _drops(self) -> bool:
        """Whether corruptions are left out: a level's own suit its own target already."""
        return self.reachable and self.calibrated and self.target is not None and self.corruptions is None

    def names(self, layout: Layout) -> tuple[str, ...]:
        """Corruptions to draw from: the given ones, or those of the level that the data set has and that are hard
        enough."""
        if self.corruptions is not None:
            for name in self.corruptions:
                layout.position(name)
            names = self.corruptions
        else:
            names = tuple(n for n in LEVELS[self.level][1] if n in layout.catalog.domains)
            if self._drops and self.paths is None and layout.matrices is not None and len(names) > 1:
                low = [n for n in names if at_worst(layout.matrices, n) <= self.accuracy]
                if len(low) < 2:
                    raise ConfigError(
                        f"{self.name}: {len(low)} of {len(names)} corruptions bring the source network down to a "
                        f"target of {self.accuracy:g} %, and a transition needs two; choose a higher target, or "
                        "reachable=false to keep them all"
                    )
                names = tuple(low)
        if len(names) < 2:
            raise ConfigError(
                f"{self.name}: a transition needs two corruptions of level {self.level!r}, this stream has "
                f"{len(names)}; name some with corruptions=[...]"
            )
        return names

    def pairs(self, names: tuple[str, ...], seed: int) -> Iterator[tuple[str, str]]:
        """The endless sequence of transitions; each begins with the corruption the last one ended with."""
        draw = random.Random(seed if self.order_seed is None else self.order_seed)
        first = draw.choice(names)
        while True:
            second = draw.choice(names)
            while second == first:
                second = draw.choice(names)
            yield first, second
            first = second

    def segments(self, layout: Layout) -> Iterator[Segment]:
        if not layout.pairs:
            raise ConfigError(
                f"{self.name} applies two corruptions to an image, which this data set cannot do (it has no "
                "load_pair); use a data set that corrupts on the fly, or 'continual' for published shards"
            )
        notches, done = -(-self.images // self.speed), 0
        size = min(self.speed, layout.images)
        known: dict[tuple[str, str], Path] = {}
        for visit, (first, second) in enumerate(self.pairs(self.names(layout), layout.seed)):
            if (first, second) not in known:
                known[first, second] = self._path_of(layout, first, second)
            for place, (one, other) in enumerate(known[first, second]):
                if done == notches:
                    return
                done += 1
                yield Segment(
                    f"{first}@{one:g}+{second}@{other:g}",
                    (layout.position(first),),
                    (one + other) / 2,
                    size,
                    cycle=0,
                    visit=visit,
                    continues=place > 0,
                    shuffle=done,
                    pair=((first, one), (second, other)),
                )

    def _path(self, matrix: Any) -> Path:
        values = np.asarray(matrix, dtype=np.float64)
        return severities(severity_path(values, self.accuracy), len(values))

    def _path_of(self, layout: Layout, first: str, second: str) -> Path:
        if not self.calibrated:
            return staircase()
        if self.paths is not None:
            for name, path in self.paths:
                if name in pair_keys(first, second):
                    return path
            raise ConfigError(f"{self.name}: no severity path for {pair_name(first, second)!r}")
        if layout.matrices is None:
            raise ConfigError(
                f"{self.name} keeps the difficulty constant by accuracy matrices and none were given; measure them "
                "with slomofast.streams.LazyMatrices(model, data) and pass Stream(matrices=...), or set "
                "calibrated=false for a plain staircase"
            )
        return self._path(lookup(layout.matrices, first, second))


def _checked_paths(paths: Any) -> tuple[tuple[str, Path], ...]:
    items = paths.items() if isinstance(paths, Mapping) else paths
    try:
        found = {str(name): tuple((float(a), float(b)) for a, b in path) for name, path in items}
    except (TypeError, ValueError):
        raise ConfigError(f"ccc: paths must be {{'a+b': [[s1, s2], ...]}}, got {paths!r}") from None
    for name, path in found.items():
        if not path or any(not 0 <= s <= 5 for point in path for s in point):
            raise ConfigError(f"ccc: the path of {name!r} must have points with severities from 0 to 5, got {path}")
    return tuple(sorted(found.items()))


def usual_step(data: DataSet) -> float:
    """Severity between two notches: that of CCC for large images, twice as much for small ones."""
    return 0.25 if data.image_size >= LARGE else 0.5


@torch.no_grad()
def accuracy(
    predict: Callable[[Tensor], Tensor],
    data: DataSet,
    first: tuple[str, float],
    second: tuple[str, float],
    images: int = 1000,
    batch_size: int = 200,
) -> float:
    """Accuracy (percent) of a fixed model under two corruptions, on images spread evenly over the data set.

    Large images are cropped in the middle, as CCC is calibrated, and not varied as its streams are.
    """
    load = getattr(data, "plain_pair" if data.image_size >= LARGE else "load_pair", None) or _load_pair(data)
    index = spread(data.size, min(images, data.size))
    labels, right = np.asarray(data.labels(first[0])), 0
    for begin in range(0, len(index), batch_size):
        part = index[begin : begin + batch_size]
        logits = predict(as_float(load(first, second, part)))
        right += int((logits.argmax(1).cpu() == torch.from_numpy(labels[part])).sum())
    return 100 * right / len(index)


def _load_pair(data: DataSet) -> Callable[..., Tensor]:
    load = getattr(data, "load_pair", None)
    if load is None:
        raise DataError(f"data set {data.name!r} cannot apply two corruptions (it has no load_pair)")
    return cast(Callable[..., Tensor], load)


def accuracy_matrix(
    predict: Callable[[Tensor], Tensor],
    data: DataSet,
    pair: tuple[str, str],
    step: float | None = None,
    images: int = 1000,
    batch_size: int = 200,
) -> np.ndarray:
    """`accuracy` for every combination of two severities: shape (n, n), n = 5 / step + 1; see `usual_step`."""
    step = usual_step(data) if step is None else step
    size = round(5 / step) + 1
    if size < 2 or abs(step * (size - 1) - 5) > 1e-9:
        raise ConfigError(f"step must divide 5, such as 0.25, 0.5 or 1; got {step!r}")
    cells = [
        [accuracy(predict, data, (pair[0], i * step), (pair[1], j * step), images, batch_size) for j in range(size)]
        for i in range(size)
    ]
    return np.array(cells)


def accuracy_matrices(
    predict: Callable[[Tensor], Tensor],
    data: DataSet,
    pairs: Iterable[tuple[str, str]],
    step: float | None = None,
    images: int = 1000,
    batch_size: int = 200,
) -> dict[str, np.ndarray]:
    """Accuracy matrices of several ordered pairs, by `a+b`."""
    return {pair_name(*pair): accuracy_matrix(predict, data, pair, step, images, batch_size) for pair in pairs}


class LazyMatrices(Mapping[str, np.ndarray]):
    """Accuracy matrices measured when a stream asks for them, so that only the pairs it shows are measured.

    `known` holds what was measured so far (plain lists are welcome); keep it between runs. Under the name of a
    corruption, not of a pair, it holds one cell, the accuracy with that one alone at severity 5.
    """

    def __init__(
        self,
        predict: Callable[[Tensor], Tensor],
        data: DataSet,
        step: float | None = None,
        images: int = 1000,
        batch_size: int = 200,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self._measure = lambda pair: accuracy_matrix(predict, data, pair, step, images, batch_size)
        self._at_worst = lambda name: accuracy(predict, data, (name, 5.0), (name, 0.0), images, batch_size)
        self._names = [pair_name(a, b) for a in data.domains for b in data.domains if a != b]
        self.known: dict[str, np.ndarray] = {k: np.asarray(v, np.float64) for k, v in (known or {}).items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.known:
            if name not in self._names:
                raise KeyError(name)
            first, _, second = name.partition("+")
            self.known[name] = self._measure((first, second))
        return self.known[name]

    def at_worst(self, name: str) -> float:
        """Accuracy with one corruption alone, at severity 5."""
        if name not in self.known:
            self.known[name] = np.array([[self._at_worst(name)]])
        return float(self.known[name][0, 0])

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def at_worst(matrices: Mapping[str, Any], name: str) -> float:
    """Accuracy with one corruption alone at severity 5, as its matrices say; zero where there are none."""
    if isinstance(matrices, LazyMatrices):
        return matrices.at_worst(name)
    return min((low for first, low in _first_alone(matrices) if first == name), default=0.0)


def reachable(matrices: Mapping[str, Any], target: float) -> tuple[str, ...]:
    """Corruptions that bring the model down to the target accuracy at full severity, in the order of the keys."""
    return tuple(dict.fromkeys(first for first, low in _first_alone(matrices) if low <= target))


def _first_alone(matrices: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The first corruption of every matrix, and the accuracy with it alone at its worst."""
    full = {short: name for name, short in _PUBLISHED.items()}
    for name, matrix in matrices.items():
        first = name.split("+")[0] if "+" in name else name.removeprefix("n1_").split("_n2_")[0]
        yield full.get(first, first), float(np.asarray(matrix)[-1][0])
