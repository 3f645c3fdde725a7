"""A stream: a setting played over a data set, batch by batch."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, unknown_name
from slomofast.data.catalog import DataSet
from slomofast.streams.options import whole, within
from slomofast.streams.order import bursts, shuffled, spread
from slomofast.streams.ordering import as_float
from slomofast.streams.prefetch import ahead
from slomofast.streams.schedule import Layout, Segment, Setting, lay_out, make_setting, part_of

_IMAGES, _MIXED, _BURSTS = 10, 11, 12  # purposes of the run's randomness, see order.generator
_HASHED_ORDERS = 32


@dataclass(frozen=True)
class Batch:
    """What arrives at one step. The adapter is given `images` alone; everything else is for the measurement.

    Attributes:
        images: float32 in [0, 1], shape (n, 3, H, W), on the stream's device.
        target: int64, shape (n,), on the stream's device.
        domain: int64, shape (n,), positions in `stream.domains`; stays on the CPU.
        severity: float32, shape (n,); stays on the CPU.
        position: number of the batch in the whole stream, from 0.
        segment: number of the segment.
        cycle: repetition of the setting's pattern.
        visit: running number of the stay at a domain.
        reset: the adapter is to be reset before this batch.
    """

    images: Tensor
    target: Tensor
    domain: Tensor
    severity: Tensor
    position: int
    segment: int
    cycle: int
    visit: int
    reset: bool = False

    def __len__(self) -> int:
        return len(self.target)


class Stream:
    """The batches of a setting over a data set; the same arguments give the same stream on every machine.

    Images of a domain are shuffled with the run's seed, by the same permutation in every domain and at every
    visit. A batch never crosses a segment; the last batch of a segment may be short.

    Args:
        setting: a setting, its name, or its dictionary.
        data: where images and labels come from.
        batch_size: images in a batch.
        seed: decides every order of the run.
        images_per_domain: images shown at each visit of a domain; all that are there if None.
        severity: strength of the corruptions, 0 to 5.
        domains: domains to use, in this order; all if None.
        held_out: share of each domain kept out of the stream for measuring without learning.
        start: first batch to play.
        device: where images and targets go; where the data set puts them if None.
        source_errors: the source model's error by domain, for the orders that need it.
        matrices: accuracy matrices by pair, for `ccc`.
        repeat: allow more images per domain than there are, in fresh orders.
        shuffle: False keeps the data set's own order; None shuffles unless the data set says `ordered`.
        prefetch: batches loaded ahead by a background thread; 0 for none.

    `len(stream)` counts the batches from `start` on, `stream.total` all of them.
    """

    def __init__(
        self,
        setting: Setting | str | Mapping[str, Any],
        data: DataSet,
        batch_size: int = 200,
        seed: int = 0,
        images_per_domain: int | None = None,
        severity: float = 5,
        domains: Sequence[str] | None = None,
        held_out: float = 0.0,
        start: int = 0,
        device: torch.device | str | None = None,
        *,
        source_errors: Mapping[str, float] | None = None,
        matrices: Mapping[str, np.ndarray] | None = None,
        repeat: bool = False,
        shuffle: bool | None = None,
        prefetch: int = 2,
    ) -> None:
        self.setting = make_setting(setting)
        self.data = data
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, None)
        self.severity = within("severity", severity, 0, 5)
        self.held_out_share = within("held_out", held_out, 0, 0.9)
        self.device = None if device is None else torch.device(device)
        self.prefetch = whole("prefetch", prefetch, 0)
        self.repeat = repeat
        self.shuffle = not getattr(data, "ordered", False) if shuffle is None else shuffle
        self.catalog = part_of(data.catalog(source_errors), domains)

        held = round(data.size * self.held_out_share)
        if self.held_out_share and not held:
            raise ConfigError(f"held_out {held_out:g} of {data.size} images is not one image; raise it or set it to 0")
        self._held = spread(data.size, held)
        self._kept = np.delete(np.arange(data.size), self._held) if held else None
        available = data.size - held
        images = available if images_per_domain is None else whole("images_per_domain", images_per_domain, 1)
        if images > available and not repeat:
            reason = f" ({held} are held out)" if held else ""
            raise ConfigError(
                f"images_per_domain {images} is more than the {available} images of a domain{reason}; "
                "lower it, or in Python pass repeat=True"
            )
        self.images_per_domain = images
        self.available = available

        pairs = hasattr(data, "load_pair")
        layout = Layout(self.catalog, images, self.severity, self.seed, matrices, pairs, available)
        self.segments: tuple[Segment, ...] = lay_out(self.setting, layout)
        self.domains: tuple[str, ...] = self.catalog.domains
        self.groups: dict[str, tuple[str, ...]] = dict(self.catalog.groups)
        if any(s.pair for s in self.segments):
            self._name_pairs()
        steps = [-(-s.count // self.batch_size) for s in self.segments]
        self._ends = np.cumsum(np.array(steps, dtype=np.int64))
        self.total = int(self._ends[-1])
        self.start = 0
        self._orders: tuple[tuple[tuple[Any, ...], tuple[np.ndarray, np.ndarray]], ...] = ()
        self._go_to(start)

    def _go_to(self, start: int) -> None:
        if not 0 <= start <= self.total:
            raise ConfigError(f"start {start} is outside the stream's {self.total} batches")
        self.start = start

    def _name_pairs(self) -> None:
        """Domains of a stream of pairs are the pairs, in the order in which they first appear."""
        names = [f"{s.pair[0][0]}+{s.pair[1][0]}" if s.pair else "" for s in self.segments]
        plain = [d for k, s in enumerate(self.segments) if not names[k] for d in s.domains]
        order = [self.domains[d] for d in dict.fromkeys(plain)] + [n for n in dict.fromkeys(names) if n]
        place = {name: k for k, name in enumerate(order)}
        renamed = []
        for name, segment in zip(names, self.segments, strict=True):
            spots = (place[name],) if name else tuple(place[self.domains[d]] for d in segment.domains)
            renamed.append(replace(segment, domains=spots))
        self.segments, self.domains = tuple(renamed), tuple(order)
        kept = {g: tuple(d for d in members if d in place) for g, members in self.groups.items()}
        self.groups = {g: members for g, members in kept.items() if members}

    def __len__(self) -> int:
        return self.total - self.start

    def from_position(self, position: int) -> Stream:
        """The same stream starting at a batch; takes the same time for every position."""
        other = copy.copy(self)
        other._go_to(position)
        return other

    def locate(self, position: int) -> tuple[Segment, int]:
        """Segment of a batch and the batch's number inside it."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        if position < 0 or number == len(self.segments):
            raise IndexError(f"batch {position} is outside the stream's {self.total}")
        first = int(self._ends[number - 1]) if number else 0
        return self.segments[number], position - first

    def rows(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """What a batch shows: positions of the domains and indices of the images, two int64 arrays (n,)."""
        segment, step = self.locate(position)
        begin = step * self.batch_size
        return self._rows(segment, begin, min(begin + self.batch_size, segment.count))

    def _rows(self, segment: Segment, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        if len(segment.domains) == 1 and segment.delta is None and not self.shuffle:
            index = np.arange(begin, end, dtype=np.int64) % self.available
            return np.full(end - begin, segment.domain, np.int64), self._to_data(index)
        places, index = self._order(segment)
        return np.array(segment.domains, np.int64)[places[begin:end]], index[begin:end]

    def _order(self, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        """Every row of a segment: place in its domains, index in the data set. The last few are kept."""
        key = self._recipe(segment)
        found = next((order for known, order in self._orders if known == key), None)
        if found is None:
            found = self._computed_order(segment)
            self._orders = (
                (key, found),
                *self._orders[:1],
            )  # replaced whole: safe to read from other threads
        return found

    def _recipe(self, segment: Segment) -> tuple[Any, ...]:
        bursty = (segment.number, segment.delta) if segment.delta is not None else None
        return (len(segment.domains), segment.images, segment.shuffle, bursty)

    def _computed_order(self, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        index = self._to_data(self._images(segment.images, segment.shuffle))
        places = np.zeros(segment.images, np.int64)
        if len(segment.domains) > 1:
            order = shuffled(segment.count, self.seed, _MIXED, segment.shuffle)
            places, index = order // segment.images, index[order % segment.images]
        if segment.delta is not None:
            labels = self._labels(segment, places, index)
            slots = segment.slots or len(np.unique(labels))
            order = bursts(labels, segment.delta, slots, self.seed, _BURSTS, segment.number)
            places, index = places[order], index[order]
        return places, index

    def _images(self, count: int, shuffle: int) -> np.ndarray:
        passes = []
        for turn in range(-(-count // self.available)):
            fresh = shuffled(self.available, self.seed, _IMAGES, shuffle, turn) if self.shuffle else None
            passes.append(np.arange(self.available) if fresh is None else fresh)
        return np.concatenate(passes)[:count]

    def _to_data(self, index: np.ndarray) -> np.ndarray:
        return index if self._kept is None else self._kept[index]

    def _labels(self, segment: Segment, places: np.ndarray, index: np.ndarray) -> np.ndarray:
        labels = np.empty(len(index), np.int64)
        for place, domain in enumerate(segment.domains):
            chosen = places == place
            labels[chosen] = self._labels_of(domain, segment)[index[chosen]]
        return labels

    def _labels_of(self, domain: int, segment: Segment) -> np.ndarray:
        return np.asarray(self.data.labels(segment.pair[0][0] if segment.pair else self.domains[domain]))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides which images come when; equal streams have equal fingerprints."""
        facts = {
            "setting": self.setting.to_dict(),
            "domains": self.domains,
            "size": self.data.size,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "images_per_domain": self.images_per_domain,
            "severity": self.severity,
            "held_out": len(self._held),
            "repeat": self.repeat,
            "shuffle": self.shuffle,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for s in self.segments:
            digest.update(repr((s.name, s.domains, s.severity, s.images, s.cycle, s.visit, s.reset, s.pair)).encode())
        # Long streams repeat a few orders or draw thousands of alike ones: an even choice of them is enough.
        distinct = list({self._recipe(s): s for s in self.segments}.values())
        for k in spread(len(distinct), min(len(distinct), _HASHED_ORDERS)):
            places, index = self._rows(distinct[k], 0, min(distinct[k].count, 1_000_000))
            digest.update(np.ascontiguousarray(places, "<i8").tobytes())
            digest.update(np.ascontiguousarray(index, "<i8").tobytes())
        return digest.hexdigest()[:16]

    def __iter__(self) -> Iterator[Batch]:
        return ahead((self.batch(k) for k in range(self.start, self.total)), self.prefetch)

    def batch(self, position: int) -> Batch:
        """Load one batch by its number."""
        segment, step = self.locate(position)
        domain, index = self.rows(position)
        images, labels = self._load(segment, domain, index)
        images = as_float(images if self.device is None else images.to(self.device, non_blocking=True))
        return Batch(
            images=images,
            target=torch.from_numpy(labels).to(images.device, non_blocking=True),
            domain=torch.from_numpy(domain.copy()),
            severity=torch.full((len(index),), segment.severity, dtype=torch.float32),
            position=position,
            segment=segment.number,
            cycle=segment.cycle,
            visit=segment.visit,
            reset=segment.reset and step == 0,
        )

    def _load(self, segment: Segment, domain: np.ndarray, index: np.ndarray) -> tuple[Tensor, np.ndarray]:
        if segment.pair:
            images = self.data.load_pair(*segment.pair, index)  # type: ignore[attr-defined]
            return images, self._labels_of(segment.domain, segment)[index].astype(np.int64)
        present = np.unique(domain)
        if len(present) == 1:
            images = self.data.load(self.domains[present[0]], segment.severity, index)
            return images, self._labels_of(int(present[0]), segment)[index].astype(np.int64)
        labels = np.empty(len(index), np.int64)
        images = torch.empty(0)
        for d in present:
            spots = np.flatnonzero(domain == d)
            part = self.data.load(self.domains[d], segment.severity, index[spots])
            if not len(images):
                images = torch.empty((len(index), *part.shape[1:]), dtype=part.dtype, device=part.device)
            images[torch.from_numpy(spots).to(part.device)] = part
            labels[spots] = self._labels_of(int(d), segment)[index[spots]]
        return images, labels

    def held_out_index(self) -> np.ndarray:
        """Indices kept out of the stream, the same in every domain and for every seed: int64, sorted."""
        return self._held.copy()

    def held_out_batches(self, domain: str | int, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-out sample of a domain in pieces: images in [0, 1] and labels, on the stream's device.

        Severity is the stream's own. A pair of corruptions is shown at the middle of its first transition.
        """
        place = self._place(domain)
        if not len(self._held):
            raise ConfigError("this stream keeps nothing out; build it with held_out=0.1 or so")
        alike = [s for s in self.segments if s.domains == (place,) and s.pair]
        first = [s for s in alike if s.visit == alike[0].visit]
        segment = first[len(first) // 2] if first else Segment("", (place,), self.severity, len(self._held))
        size = batch_size or self.batch_size
        for begin in range(0, len(self._held), size):
            index = self._held[begin : begin + size]
            images, labels = self._load(segment, np.full(len(index), place), index)
            images = as_float(images if self.device is None else images.to(self.device))
            yield images, torch.from_numpy(labels).to(images.device)

    def held_out(self, domain: str | int) -> tuple[Tensor, Tensor]:
        """The held-out sample of a domain: images (n, 3, H, W) in [0, 1] and labels (n,)."""
        images, labels = zip(*self.held_out_batches(domain), strict=True)
        return torch.cat(images), torch.cat(labels)

    def _place(self, domain: str | int) -> int:
        if isinstance(domain, str):
            if domain not in self.domains:
                raise unknown_name("domain", domain, self.domains)
            return self.domains.index(domain)
        return domain

    def table(self) -> list[dict[str, Any]]:
        """The segments as plain JSON: name, domain, severity, cycle, visit, first batch, batches, images."""
        starts = np.concatenate([[0], self._ends[:-1]])
        return [
            {
                "name": s.name,
                "domain": s.domain,
                "severity": s.severity,
                "cycle": s.cycle,
                "visit": s.visit,
                "start": int(start),
                "steps": int(end - start),
                "images": s.count,
                "reset": s.reset,
                **({"pair": [list(one) for one in s.pair]} if s.pair else {}),
            }
            for s, start, end in zip(self.segments, starts, self._ends, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Stream({self.setting.name!r}, {self.data.name!r}, batches={self.total}, seed={self.seed})"

    def __str__(self) -> str:
        from slomofast.streams.show import as_text

        return as_text(self)

    def __rich__(self) -> Any:
        from slomofast.streams.show import as_rich

        return as_rich(self)
