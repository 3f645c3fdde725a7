"""Steps made up for tests: logits whose predictions are known."""

from __future__ import annotations

import torch

from slomofast.metrics import Step

CLASSES = 4
DOMAINS = ("fog", "snow", "frost")
GROUPS = {"haze": ("fog",), "cold": ("snow", "frost")}


def step(position, domain, wrong, count=10, *, segment=None, cycle=0, visit=None, severity=5.0, seconds=None):
    """A step of `count` images of which the first `wrong` are misclassified with moderate confidence.

    `domain` may be a list with one entry per image.
    """
    target = torch.arange(count) % CLASSES
    answer = target.clone()
    answer[:wrong] = (answer[:wrong] + 1) % CLASSES
    logits = 2.0 * torch.nn.functional.one_hot(answer, CLASSES).float()
    domains = torch.tensor(domain) if isinstance(domain, list) else torch.full((count,), domain)
    place = segment if segment is not None else position
    stay = visit if visit is not None else place
    levels = torch.full((count,), severity)
    return Step(logits, target, domains, levels, position, place, cycle, stay, seconds)


def noise(seed, steps=30, classes=5):
    """Random steps over three domains, some of them mixed, in two cycles; a visit has five batches."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for k in range(steps):
        count = int(torch.randint(3, 20, (1,), generator=generator))
        mixed = k // 5 % 3 == 2
        domain = torch.randint(0, 3, (count,), generator=generator) if mixed else torch.full((count,), k // 5 % 3)
        logits = 2 * torch.randn(count, classes, generator=generator)
        target = torch.randint(0, classes, (count,), generator=generator)
        level = torch.full((count,), 5.0)
        made.append(Step(logits, target, domain, level, k, k // 5, k // 15, k // 5, 0.01 * (k + 1), 100 * k))
    return made
