"""Draw the timelines of docs/settings.md: `python docs/draw_settings.py`. Needs no images and no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from slomofast.corruptions import CANONICAL, GROUPS
from slomofast.data.catalog import DataSet
from slomofast.report.plots import save, timeline
from slomofast.streams import Stream, list_settings, make_setting

FOLDER = Path(__file__).parent / "images" / "settings"
SHORTENED = {
    "ccc": {"calibrated": False, "speed": 200, "images": 42_000},
    "stochastic": {},
    "correlated": {"inner": "cross_group"},
    "then": {"first": "cyclic", "second": "mixed"},
}


class Plain(DataSet):
    """The fifteen corruptions as names: a catalogue to lay streams out on."""

    name, family, classes, image_size, fingerprint = "plain", "cifar", 10, 32, "plain"
    domains, groups, size = tuple(CANONICAL), GROUPS, 10_000

    def labels(self, domain: str) -> np.ndarray:
        return np.arange(self.size) % self.classes

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        raise NotImplementedError("a plain catalogue has no images")

    def load_pair(self, first: tuple[str, float], second: tuple[str, float], index: np.ndarray) -> Tensor:
        raise NotImplementedError("a plain catalogue has no images")


def main() -> None:
    """Write one picture for every setting."""
    # An order of difficulty to show; a real run measures it with its own source network.
    errors = {domain: (place * 37) % 90 for place, domain in enumerate(Plain.domains)}
    for name in list_settings(combinators=True):
        setting = make_setting(name, **SHORTENED.get(name, {}))
        stream = Stream(setting, Plain(), 200, source_errors=errors)
        title = f"{name} · {stream.total:,} batches of 200"
        save(timeline(stream.table(), stream.domains, stream.catalog.groups, title), FOLDER / f"{name}.png", dpi=80)
        print(f"{name}: {stream.total} batches, fingerprint {stream.fingerprint}")


if __name__ == "__main__":
    main()
