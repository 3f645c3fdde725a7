"""Freeze short runs of every method, so that a change of behaviour shows.

    python tests/golden/regenerate.py            all methods
    python tests/golden/regenerate.py tent roid  only these

Prints how far each trace moved. Networks, stream and source data are made from NumPy's generator, so that they do not
depend on PyTorch's version.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import slomofast as sf

COMMAND = "python tests/golden/regenerate.py"
FILE = Path(__file__).with_name("traces.json")
NETS = ("batch", "layer")
STEPS = (1, 4, 8)
SAMPLES = 4
CLASSES = 5
BATCH = 12
SIDE = 12

OPTIONS: dict[str, dict[str, object]] = {
    "vida": {
        "adapter_lr": 0.01,
        "teacher_momentum": 0.9,
        "adapter_momentum": 0.5,
        "restore": 0.1,
        "threshold": 0.8,
        "wide": 8,
    },
    "dpcore": {"least_images": 2, "lr": 0.02, "steps_new": 10},
    "reservoirtta": {
        "redundancy_margin": 0.8,
        "lr": 0.01,
        "quantile": 0.55,
        "max_domains": 3,
        "style_buffer": 6,
        "centre_lr": 0.05,
    },
    "asr": {
        "redundancy_margin": 0.8,
        "lr": 0.02,
        "baseline_start": 0.9,
        "baseline_rate": 0.7,
        "reset_slope": 0.2,
        "penalty_weight": 500,
    },
    "eta": {"redundancy_margin": 0.8},
    "lcotta": {"redundancy_margin": 0.8, "lr": 0.003, "components": 2, "queue": 4, "interval": 1},
    "obao": {"entropy_margin": 0.3, "capacity": 20, "replay_batch": 8, "teacher_momentum": 0.5},
    "petta": {"teacher_momentum": 0.5},
    "rdumb": {"interval": 5, "redundancy_margin": 0.8},
    "rotta": {"update_every": 24, "teacher_momentum": 0.5},
    "sar": {"reset_below": 0.05},
    "tca": {"topology_weight": 1.0, "align_weight": 0.5, "teacher_momentum": 0.9},
}
"""Options other than the defaults, for methods that would show little of themselves in eight small batches."""

Trace = dict[str, list[list[float]]]


class Tokens(nn.Module):
    """Patches, two LayerNorms, a head: the smallest thing like a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 12, 4, stride=4, bias=False), nn.LayerNorm(12)
        self.middle, self.last = nn.Linear(12, 12), nn.LayerNorm(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(self.patches(x).flatten(2).mT)
        return self.head(self.last(tokens + self.middle(tokens).relu()).mean(1))


def network(kind: str) -> nn.Module:
    """Weights drawn once and for all, then tuned so that the network is neither always sure nor always of one mind."""
    draw = np.random.default_rng(17)
    net: nn.Module = Tokens()
    if kind == "batch":
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
        )  # fmt: skip
    for name, value in net.named_parameters():
        shape = tuple(value.shape)
        centre = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        spread = 0.1 if len(shape) == 1 else 1.4 / np.sqrt(np.prod(shape[1:]))
        value.data.copy_(torch.from_numpy(draw.normal(centre, spread, shape)))
    return _balanced(net, images(draw, 200))


@torch.no_grad()
def _balanced(net: nn.Module, typical: Tensor) -> nn.Module:
    """BatchNorm statistics of typical images, and logits of mean zero and standard deviation four on them."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    net.train()(typical)
    net.eval()
    head = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    head.bias.zero_()
    logits = net(typical)
    scale = 4.0 / logits.std(0)
    head.weight.mul_(scale[:, None])
    head.bias.copy_(-scale * logits.mean(0))
    return net


def images(draw: np.random.Generator, count: int) -> Tensor:
    """Blurry coloured noise in [0, 1] with a contrast of its own per image."""
    coarse = draw.uniform(0.0, 1.0, (count, 3, SIDE // 4, SIDE // 4)).repeat(4, 2).repeat(4, 3)
    fine = draw.normal(0.0, 0.1, (count, 3, SIDE, SIDE))
    contrast = draw.uniform(0.3, 1.0, (count, 1, 1, 1))
    return torch.from_numpy(np.clip(0.5 + contrast * (coarse - 0.5) + fine, 0, 1).astype(np.float32))


def stream() -> list[Tensor]:
    """Eight batches of 8-bit images whose colours drift; in between, AugMix would round by chance."""
    draw = np.random.default_rng(23)
    drift = torch.tensor([0.05, -0.03, 0.02])[None, :, None, None]
    return [((images(draw, BATCH) + step * drift).clamp(0, 1) * 255).round() / 255 for step in range(max(STEPS))]


def source_data() -> list[tuple[Tensor, Tensor]]:
    """What methods that need source data get to see."""
    draw = np.random.default_rng(29)
    return [(images(draw, BATCH), torch.from_numpy(draw.integers(0, CLASSES, BATCH))) for _ in range(6)]


def trace(method: str, kind: str) -> Trace:
    """Logits of the first samples at the chosen steps, by step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = sf.adapt(network(kind), method, seed=7, **OPTIONS.get(method, {}))
        if adapter.needs_source:
            adapter.fit_source(source_data())
        found: Trace = {}
        for step, x in enumerate(stream(), 1):
            logits = adapter(x)
            if step in STEPS:
                found[str(step)] = [[round(v, 4) for v in row] for row in logits[:SAMPLES].tolist()]
    return found


def own_methods() -> list[str]:
    """Registered methods of this package; plug-ins are not ours to freeze."""
    return [name for name in sf.list_methods() if sf.describe(name).adapter.__module__.startswith("slomofast.")]


def stored() -> dict[str, dict[str, Trace]]:
    """The frozen traces by method and network."""
    content: dict[str, dict[str, Trace]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return content


def distance(old: Trace | None, new: Trace) -> float:
    """Largest difference of two traces; infinite where one is missing or of another shape."""
    if old is None or old.keys() != new.keys():
        return float("inf")
    return max(float(np.abs(np.subtract(old[step], new[step])).max()) for step in new)


def write(traces: dict[str, dict[str, Trace]]) -> None:
    """One line per method, network and step, so that a difference reads well."""
    lines = []
    for method in sorted(traces):
        nets = [
            f"  {json.dumps(kind)}: {{\n"
            + ",\n".join(f"   {json.dumps(step)}: {json.dumps(rows)}" for step, rows in traces[method][kind].items())
            + "\n  }"
            for kind in sorted(traces[method])
        ]
        lines.append(f" {json.dumps(method)}: {{\n" + ",\n".join(nets) + "\n }")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(names: list[str]) -> None:
    """Recompute the traces of the named methods (all, if none is named) and drop those of methods that are gone."""
    torch.set_num_threads(1)
    known = own_methods()
    for name in names:
        sf.describe(name)
    before = stored()
    after = {name: traces for name, traces in before.items() if name in known}
    for name in names or known:
        after[name] = {kind: trace(name, kind) for kind in NETS}
        moved = {kind: distance(before.get(name, {}).get(kind), after[name][kind]) for kind in NETS}
        print(f"{name:20s} " + "  ".join(f"{kind} moved by {value:.4f}" for kind, value in moved.items()))
    write(after)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except sf.SlomofastError as error:
        sys.exit(str(error))
