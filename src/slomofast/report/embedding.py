"""Two coordinates for the prototypes a run left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_POINTS = 1500


def prototype_map(prototypes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Points in the plane with their classes: those recorded, or a t-SNE of the recorded features.

    None for fewer than three points. The t-SNE has a fixed seed. Raises `ImportError` without scikit-learn and
    `ValueError` for entries of unequal length.
    """
    recorded = "points" in prototypes
    rows = np.asarray(prototypes.get("points") or prototypes.get("features") or [], dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 3:
        return None
    labels = list(prototypes.get("labels") or range(len(rows)))
    if len(labels) != len(rows):
        raise ValueError(f"{len(rows)} prototypes but {len(labels)} labels")
    if len(rows) > MAX_POINTS:
        chosen = np.linspace(0, len(rows) - 1, MAX_POINTS).round().astype(int)
        rows, labels = rows[chosen], [labels[i] for i in chosen]
    points = rows[:, :2] if recorded or rows.shape[1] <= 2 else _tsne(rows)
    return {"points": points.round(3).tolist(), "labels": labels, "kind": "as recorded" if recorded else "t-SNE"}


def _tsne(rows: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = float(min(30.0, max(2.0, (len(rows) - 1) / 3)))
    method = "exact" if len(rows) <= 300 else "barnes_hut"
    model = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=0, method=method, max_iter=500)
    with threadpool_limits(1):  # so few points gain nothing from threads, which would also add in any order
        return np.asarray(model.fit_transform(rows), dtype=np.float64)
