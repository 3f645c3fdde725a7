"""The queues against a slow version that inserts one sample after the other."""

import pytest
import torch

from slomofast.memory import PrototypeQueues


class SlowQueues:
    """As the description says it: per class a list, replace the highest entropy when the new one is lower."""

    def __init__(self, classes: int, capacity: int) -> None:
        self.capacity, self.lists = capacity, [[] for _ in range(classes)]  # type: ignore[var-annotated]

    def push(self, features: torch.Tensor, entropies: torch.Tensor, labels: torch.Tensor, keep: torch.Tensor) -> None:
        for z, h, c, k in zip(features, entropies.tolist(), labels.tolist(), keep.tolist(), strict=True):
            queue = self.lists[c]
            if not k:
                continue
            if len(queue) < self.capacity:
                queue.append((h, z))
                continue
            worst = max(range(len(queue)), key=lambda i: queue[i][0])
            if h < queue[worst][0]:
                queue[worst] = (h, z)

    def drop_most_confident(self) -> None:
        for queue in self.lists:
            if len(queue) == self.capacity:
                queue.pop(min(range(len(queue)), key=lambda i: queue[i][0]))

    def prototype(self, c: int, eps: float = 1e-6) -> torch.Tensor | None:
        if not self.lists[c]:
            return None
        weights = [1 / (h + eps) for h, _ in self.lists[c]]
        return sum(w * z for w, (_, z) in zip(weights, self.lists[c], strict=True)) / sum(weights)


@pytest.mark.parametrize("trial", range(12))
def test_random_trials_agree(trial: int) -> None:
    g = torch.Generator().manual_seed(trial)
    classes, capacity, dim = 5, 1 + trial % 4, 3
    fast = PrototypeQueues(classes, capacity, dim, torch.device("cpu"), torch.float32)
    slow = SlowQueues(classes, capacity)
    for step in range(14):
        batch = 1 + int(torch.randint(0, 9, (), generator=g))
        z, h = torch.randn(batch, dim, generator=g), torch.rand(batch, generator=g)
        c = torch.randint(0, classes - 1, (batch,), generator=g)  # the last class never comes
        keep = torch.rand(batch, generator=g) < 0.7
        fast.push(z, h, c, keep)
        slow.push(z, h, c, keep)
        if step % 4 == 3:
            fast.drop_most_confident()
            slow.drop_most_confident()
        prototypes, present = fast.prototypes()
        for label in range(classes):
            expected = slow.prototype(label)
            assert bool(present[label]) == (expected is not None)
            if expected is not None:
                torch.testing.assert_close(prototypes[label], expected, rtol=1e-4, atol=1e-5)
            held = sorted(h for h, _ in slow.lists[label])
            mine = fast.entropies[label][torch.isfinite(fast.entropies[label])].tolist()
            assert mine == pytest.approx(held)
    assert not present[-1]
    assert float(fast.fill()) == pytest.approx(sum(map(len, slow.lists)) / (classes * capacity))
