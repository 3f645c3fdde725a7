"""What a method keeps of the stream: class queues of confident features, as modules made of buffers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.core.errors import DataError
from slomofast.core.rng import Rng


class PrototypeQueues(nn.Module):
    """For every class the features of lowest entropy offered so far, and their weighted mean as prototype.

    A push is one `topk` over (classes, capacity + batch): after any pushes without pruning each queue holds exactly
    the `capacity` lowest entropies offered. Queues are sorted, most confident first; an empty slot has entropy inf.
    """

    features: Tensor
    entropies: Tensor

    def __init__(self, classes: int, capacity: int, dim: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(classes, capacity, dim, device=device, dtype=dtype))
        self.register_buffer("entropies", torch.full((classes, capacity), float("inf"), device=device))

    @torch.no_grad()
    def push(self, features: Tensor, entropies: Tensor, labels: Tensor, keep: Tensor) -> None:
        """Offer a batch: features (B, D), entropies (B,), predicted classes (B,), and which samples count (B,)."""
        classes, capacity, _ = self.features.shape
        mine = (labels[None, :] == torch.arange(classes, device=labels.device)[:, None]) & keep[None, :]
        offered = torch.where(mine, entropies.float()[None, :], float("inf"))
        values, chosen = torch.cat([self.entropies, offered], 1).topk(capacity, dim=1, largest=False)
        old = self.features.gather(1, chosen.clamp(max=capacity - 1)[..., None].expand_as(self.features))
        new = features.to(self.features.dtype)[(chosen - capacity).clamp(min=0)]
        self.features.copy_(torch.where((chosen < capacity)[..., None], old, new))
        self.entropies.copy_(values)

    @torch.no_grad()
    def drop_most_confident(self) -> None:
        """Remove the entry of lowest entropy from every full queue, so that old certainties make room."""
        full = torch.isfinite(self.entropies).all(1, keepdim=True)
        entropies = torch.cat([self.entropies[:, 1:], torch.full_like(self.entropies[:, :1], float("inf"))], 1)
        features = torch.cat([self.features[:, 1:], torch.zeros_like(self.features[:, :1])], 1)
        self.features.copy_(torch.where(full[..., None], features, self.features))
        self.entropies.copy_(torch.where(full, entropies, self.entropies))

    @torch.no_grad()
    def prototypes(self, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
        """Prototypes (C, D): means of the queues weighted by 1 / (entropy + eps); and which classes have one (C,)."""
        present = torch.isfinite(self.entropies)
        weight = torch.where(present, 1.0 / (self.entropies + eps), 0.0)
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        return torch.einsum("ck,ckd->cd", weight, self.features.float()), present.any(1)

    def fill(self) -> Tensor:
        """Share of all slots in use."""
        return torch.isfinite(self.entropies).float().mean()


def nearest(z: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """For each feature (B, D) the prototype (C, D) of highest cosine among the classes that have one."""
    cosine = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T
    return prototypes[cosine.masked_fill(~present, -2.0).argmax(1)]


class ClassMeans(nn.Module):
    """Mean feature of every class over labelled batches: prototypes (C, D), and which classes were seen (C,)."""

    prototypes: Tensor
    present: Tensor

    def __init__(self, classes: int, dim: int, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(classes, dim, device=device))
        self.register_buffer("present", torch.zeros(classes, dtype=torch.bool, device=device))

    @torch.no_grad()
    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take the means over (features (B, D), labels (B,)); what an earlier call found is replaced."""
        total = torch.zeros_like(self.prototypes)
        count = torch.zeros(len(total), device=total.device)
        for features, labels in batches:
            total.index_add_(0, labels, features.to(total.dtype))
            count.index_add_(0, labels, torch.ones_like(labels, dtype=count.dtype))
        self.prototypes.copy_(total / count.clamp(min=1)[:, None])
        self.present.copy_(count > 0)

    def nearest(self, z: Tensor) -> Tensor:
        """For each feature (B, D) the prototype of highest cosine, without a gradient."""
        return nearest(z.detach().float(), self.prototypes, self.present)


class SourceReplay(nn.Module):
    """A uniform sample of at most `capacity` labelled source images, to be drawn from during the stream."""

    images: Tensor
    labels: Tensor
    keys: Tensor

    def __init__(self, capacity: int, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(capacity, *shape, device=device))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64, device=device))
        self.register_buffer("keys", torch.full((capacity,), float("inf"), device=device))

    @torch.no_grad()
    def push(self, images: Tensor, labels: Tensor, rng: Rng) -> None:
        """Offer a batch. Every image draws a number and the lowest stay, so all images seen are equally likely."""
        keys = torch.cat([self.keys, rng.uniform(len(images))])
        kept, chosen = keys.topk(len(self.keys), largest=False)
        self.keys.copy_(kept)
        self.images.copy_(torch.cat([self.images, images])[chosen])
        self.labels.copy_(torch.cat([self.labels, labels])[chosen])

    @torch.no_grad()
    def draw(self, count: int, rng: Rng) -> tuple[Tensor, Tensor]:
        """A batch of images and labels, each image once; where fewer are stored they repeat in the same order."""
        chosen = drawn_slots(torch.isfinite(self.keys), count, rng)
        return self.images[chosen], self.labels[chosen]


def labelled(
    loader: Iterable[tuple[Tensor, Tensor]], classes: int, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Source batches with checked int64 labels, until more than `limit` images were seen."""
    seen = 0
    for images, labels in loader:
        if limit is not None and seen > limit:
            return
        seen += len(images)
        yield images, checked_labels(labels, classes)


def checked_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels as int64; an error where they are not of shape (B,) with values below `classes`."""
    if labels.dim() != 1 or labels.is_floating_point() or not bool(((labels >= 0) & (labels < classes)).all()):
        seen = f"{labels.dtype} of shape {tuple(labels.shape)} up to {labels.max().item() if labels.numel() else None}"
        raise DataError(f"source labels must be whole numbers (B,) from 0 to {classes - 1}, got {seen}")
    return labels.long()


def sent(values: list[int] | list[float], device: torch.device) -> Tensor:
    """Numbers of the host as a tensor on a device, on their way without a wait for what the device still does."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class BalancedLedger:
    """Who is in a class-balanced bank and who goes next: plain Python, because each arrival depends on the last.

    An item is worse the older and the less certain it is. An arrival whose class has not used up its share of the
    capacity takes a free slot, or else challenges the worst item of the classes that hold most; an arrival of a class
    that has used it up challenges the worst of its own. It wins where that item is worse than itself.
    """

    def __init__(self, capacity: int, classes: int, age_weight: float = 1.0, uncertainty_weight: float = 1.0) -> None:
        self.capacity, self.quota = capacity, capacity / classes
        self.age_weight, self.uncertainty_weight = age_weight, uncertainty_weight / max(math.log(classes), 1e-12)
        self.labels: list[int] = []
        self.uncertainties: list[float] = []
        self._born: list[int] = []
        self._clock = 0

    def load(self, labels: list[int], uncertainties: list[float], ages: list[int]) -> None:
        """Continue from stored items; a negative label ends them."""
        count = next((slot for slot, label in enumerate(labels) if label < 0), len(labels))
        self.labels, self.uncertainties = labels[:count], uncertainties[:count]
        self._born, self._clock = [-age for age in ages[:count]], 0

    @property
    def ages(self) -> list[int]:
        """Arrivals since each item came, itself included."""
        return [self._clock - born for born in self._born]

    def add(self, label: int, uncertainty: float) -> int | None:
        """Slot that the arrival takes, or None where it is turned away; either way everyone grows older by one."""
        slot = self._place(label, uncertainty)
        if slot is not None:
            for column, value in ((self.labels, label), (self.uncertainties, uncertainty), (self._born, self._clock)):
                column[slot : slot + 1] = [value]  # type: ignore[list-item]
        self._clock += 1
        return slot

    def _place(self, label: int, uncertainty: float) -> int | None:
        mine = [slot for slot, held in enumerate(self.labels) if held == label]
        if len(mine) < self.quota:
            if len(self.labels) < self.capacity:
                return len(self.labels)
            counts = Counter(self.labels)
            most = max(counts.values())
            mine = [slot for slot, held in enumerate(self.labels) if counts[held] == most]
        # among equals the later one goes, in the order of classes and then of arrival
        worst = max(mine, key=lambda slot: (self._badness(slot), self.labels[slot], self._born[slot]))
        return worst if self._badness(worst) > self._score(0, uncertainty) else None

    def _badness(self, slot: int) -> float:
        return self._score(self._clock - self._born[slot], self.uncertainties[slot])

    def _score(self, age: int, uncertainty: float) -> float:
        timeliness = 1.0 / (1.0 + math.exp(-age / self.capacity))
        return self.age_weight * timeliness + self.uncertainty_weight * uncertainty


class BalancedBank(nn.Module):
    """Images of a class-balanced bank in buffers of fixed size; slots 0 to n - 1 are in use, others have label -1."""

    images: Tensor
    labels: Tensor
    uncertainties: Tensor
    ages: Tensor

    def __init__(self, capacity: int, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(capacity, *shape, device=device))
        self.register_buffer("labels", torch.full((capacity,), -1, dtype=torch.int64, device=device))
        self.register_buffer("uncertainties", torch.zeros(capacity, device=device))
        self.register_buffer("ages", torch.zeros(capacity, dtype=torch.int64, device=device))

    @torch.no_grad()
    def store(self, images: Tensor, rows: Mapping[int, int]) -> None:
        """Put image `rows[slot]` of a batch into each slot named."""
        if rows:
            slots, chosen = sent(list(rows), images.device), sent(list(rows.values()), images.device)
            self.images.index_copy_(0, slots, images.index_select(0, chosen))

    @torch.no_grad()
    def record(self, ledger: BalancedLedger) -> None:
        """Keep what the ledger says about each slot."""
        count, device = len(ledger.labels), self.labels.device
        self.labels[:count] = sent(ledger.labels, device)
        self.uncertainties[:count] = sent(ledger.uncertainties, device)
        self.ages[:count] = sent(ledger.ages, device)

    @torch.no_grad()
    def fetch(
        self, ledger: BalancedLedger, logits: Tensor, usable: Tensor, *figures: Tensor
    ) -> tuple[list[int], list[float], list[float]]:
        """What the host needs to place a batch, in one transfer; the ledger is loaded with what the bank holds.

        Args:
            logits: (B, C) of the arrivals.
            usable: which arrivals may be banked (B,); of the others the entropy is NaN.
            figures: values (0-d) that travel along.

        Returns:
            predicted classes, entropies, figures.
        """
        p = logits.softmax(1)
        entropies = torch.where(usable, -(p * (p + 1e-6).log()).sum(1), float("nan"))
        tail = [figure[None] for figure in figures]
        parts = [self.labels, self.uncertainties, self.ages, p.argmax(1), entropies, *tail]
        values = torch.cat([part.float() for part in parts]).cpu()
        held, uncertainties, ages, labels, fresh, *rest = values.split([len(part) for part in parts])
        ledger.load(held.long().tolist(), uncertainties.tolist(), ages.long().tolist())
        return labels.long().tolist(), fresh.tolist(), [float(value) for value in rest]


class ClassDrift(nn.Module):
    """How far running class means of features have moved from the source's, in units of the source's variances."""

    source_means: Tensor
    source_variances: Tensor
    means: Tensor

    def __init__(self, classes: int, dim: int, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("source_means", torch.zeros(classes, dim, device=device))
        self.register_buffer("source_variances", torch.ones(classes, dim, device=device))
        self.register_buffer("means", torch.zeros(classes, dim, device=device))

    @torch.no_grad()
    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take means and variances of each class over (features (B, D), labels (B,)), and start from these means.

        A class of fewer than two samples takes the variance of all samples; one of none also their mean.
        """
        classes, device = len(self.means), self.means.device
        # double: a variance is the small difference of large sums
        count = torch.zeros(classes, 1, dtype=torch.float64, device=device)
        total, squares = (torch.zeros(self.means.shape, dtype=torch.float64, device=device) for _ in range(2))
        for features, labels in batches:
            z = features.double()
            count.index_add_(0, labels, torch.ones_like(z[:, :1]))
            total.index_add_(0, labels, z)
            squares.index_add_(0, labels, z.square())
        mean, variance = _moments(count, total, squares)
        overall_mean, overall_variance = _moments(count.sum(0), total.sum(0), squares.sum(0))
        self.source_means.copy_(torch.where(count > 0, mean, overall_mean))
        self.source_variances.copy_(torch.where(count > 1, variance, overall_variance))
        self.means.copy_(self.source_means)

    @torch.no_grad()
    def follow(self, features: Tensor, labels: Tensor, usable: Tensor, rate: float, eps: float = 1e-6) -> Tensor:
        """The drift (0-d) before these features, over the classes among them; then their running means move by `rate`.

        The drift is the mean over classes and dimensions of (mean - source mean)^2 / (source variance + eps); zero
        where no sample is usable.
        """
        with torch.autocast(features.device.type, enabled=False):  # it would round the sums to three digits
            mine = (labels[:, None] == torch.arange(len(self.means), device=labels.device)) & usable[:, None]
            count = mine.sum(0)[:, None]
            batch = mine.float().T @ torch.where(usable[:, None], features.float(), 0.0) / count.clamp(min=1)
        present = count > 0
        ratio = (self.means - self.source_means).square() / (self.source_variances + eps)
        drift = torch.where(present, ratio, 0.0).mean(1).sum() / present.sum().clamp(min=1)
        self.means.copy_(torch.where(present, self.means.lerp(batch, rate), self.means))
        return drift


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance from sums; meaningless where the count is zero, or one."""
    mean = total / count.clamp(min=1)
    return mean, (squares - total * mean).clamp(min=0) / (count - 1).clamp(min=1)


def drawn_slots(stored: Tensor, count: int, rng: Rng) -> Tensor:
    """Indices (count,) of slots in use (N,), in random order, each once; where fewer are in use they repeat."""
    order = torch.where(stored, rng.uniform(len(stored)), 2.0).argsort()
    return order[torch.arange(count, device=order.device) % stored.sum().clamp(min=1)]


class CertainImages(nn.Module):
    """Test images of low entropy with predicted labels; an empty slot has entropy inf.

    Arrivals take free slots in order, then those of the largest entropy, whether or not their own is smaller. What is
    stored is not looked at again, so the most certain images stay for good.
    """

    images: Tensor
    labels: Tensor
    entropies: Tensor

    def __init__(self, capacity: int, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(capacity, *shape, device=device))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64, device=device))
        self.register_buffer("entropies", torch.full((capacity,), float("inf"), device=device))

    @torch.no_grad()
    def push(self, images: Tensor, labels: Tensor, entropies: Tensor, keep: Tensor) -> None:
        """Store the images that count (B,), in their order; of more than there are slots, the first."""
        most = min(len(keep), len(self.entropies))
        slots = self.entropies.sort(descending=True, stable=True).indices[:most]  # empty ones first
        rows = (~keep).to(torch.uint8).sort(stable=True).indices[:most]  # kept ones first
        arrives = keep[rows]
        for held, offered in ((self.images, images), (self.labels, labels), (self.entropies, entropies.float())):
            mask = arrives.view(-1, *(1 for _ in held.shape[1:]))
            held[slots] = torch.where(mask, offered[rows], held[slots])

    @torch.no_grad()
    def draw(self, count: int, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of images and labels in random order, and which of its rows (count,) are no repetitions.

        Where fewer are stored they repeat in the same order; where none is, the images are empty and no row counts.
        """
        stored = torch.isfinite(self.entropies)
        chosen = drawn_slots(stored, count, rng)
        return self.images[chosen], self.labels[chosen], torch.arange(count, device=chosen.device) < stored.sum()

    def fill(self) -> Tensor:
        """Share of all slots in use."""
        return torch.isfinite(self.entropies).float().mean()
