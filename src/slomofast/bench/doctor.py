"""Look at a model and a sample of data, and say which methods fit and why.

Most disappointing results in this field come from a wrong input range, a wrong normalisation, a batch too small for
batch statistics, or a network without the layers a method trains. All of these can be seen before the first step.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from slomofast.core.errors import ModelError
from slomofast.core.norms import norm_kinds, norm_parameters
from slomofast.core.registry import MethodInfo, describe, list_methods
from slomofast.core.split import Classifier, input_device, last_linear, logits_of, split
from slomofast.models import Normalised, check_normalisation

Level = Literal["ok", "note", "warning", "problem"]
Verdict = Literal["fits", "careful", "no"]
SMALL_BATCH = 16  # below this, statistics of a batch are mostly noise
SHORT_BATCH = 64


@dataclass(frozen=True)
class Finding:
    """Something seen; `remedy` says what to do about it, empty where nothing is needed."""

    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Fit:
    """Whether a method suits this model and data, and the reason."""

    method: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """All that was found. `model` and `data` hold plain facts, `findings` what they mean, `fits` one entry a method."""

    model: dict[str, Any]
    data: dict[str, Any]
    findings: tuple[Finding, ...]
    fits: tuple[Fit, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """No problem was found (warnings may have been)."""
        return all(finding.level != "problem" for finding in self.findings)


def diagnose(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    clean: tuple[Tensor, Tensor] | None = None,
    classes: int | None = None,
    batch_size: int | None = None,
    source_data: bool = False,
    head: str | None = None,
) -> Diagnosis:
    """Examine a classifier and a sample of what it will see.

    Args:
        model: any `nn.Module`; it is not changed.
        images: a sample as the adapter would get it, shape (n, 3, H, W).
        labels: their classes, where known.
        clean: images and labels the model should be good at (undistorted ones).
        classes: classes of the data, where labels do not show all.
        batch_size: what the stream will use; the sample's size if not given.
        source_data: whether labelled source images are at hand for methods that need them.
        head: name of the last layer, where it cannot be found.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> diagnose(net, torch.rand(20, 3, 2, 2)).model["norms"]
    ['batch']
    """
    size = batch_size or len(images)
    pixels, findings = _look_at_images(images)
    training, model = model.training, deepcopy(model).eval()
    facts, seen = _look_at_model(model, pixels, head)
    if training:
        seen.append(Finding("note", "the model is in train mode", "adapters use a copy in eval mode; nothing to do"))
    findings += seen
    data = _data_facts(images, labels, classes, size)
    findings += _compare_classes(facts, data)
    if clean is not None and facts["classes"]:
        data |= _accuracy(model, *clean)
        findings += _judge_accuracy(data, facts["classes"])
    findings += _judge_batch(size, facts)
    fits = tuple(_fit(describe(name), facts, size, source_data) for name in list_methods())
    return Diagnosis(facts, data, tuple(findings), fits)


def _look_at_images(images: Tensor) -> tuple[Tensor, list[Finding]]:
    """The images as floats in the range they came in, and what is odd about them."""
    found: list[Finding] = []
    if images.dtype == torch.uint8:
        found.append(
            Finding("warning", "images are uint8, 0 to 255", "adapters take floats in [0, 1]: x.float() / 255")
        )
        return images.float() / 255, found
    pixels = images.float()
    low, high = float(pixels.min()), float(pixels.max())
    if not bool(torch.isfinite(pixels).all()):
        found.append(Finding("problem", "images hold NaN or Inf", "clean the input; adapters refuse such a batch"))
        return torch.nan_to_num(pixels), found
    if high > 20:
        remedy = "divide by 255 before the model sees them"
        found.append(Finding("problem", f"images run from {low:.3g} to {high:.3g}: bytes stored as floats", remedy))
    elif low < -0.01 or high > 1.01:
        remedy = "fine for a model that expects that; do not normalise a second time inside the model"
        found.append(Finding("note", f"images run from {low:.3g} to {high:.3g}: already normalised", remedy))
    elif high - low < 0.05:
        found.append(Finding("warning", f"images hardly vary ({low:.3g} to {high:.3g})", "check how they are read"))
    else:
        found.append(Finding("ok", f"images lie in [0, 1] ({low:.2g} to {high:.2g})"))
    return pixels, found


def _look_at_model(model: nn.Module, pixels: Tensor, head: str | None) -> tuple[dict[str, Any], list[Finding]]:
    found: list[Finding] = []
    total = sum(p.numel() for p in model.parameters())
    affine = sum(p.numel() for p in norm_parameters(model))
    facts: dict[str, Any] = {
        "parameters": total,
        "norms": sorted(norm_kinds(model)),
        "norm_layers": _count_norms(model),
        "norm_share": 100 * affine / total if total else 0.0,
        "classes": None,
        "head": None,
        "features": None,
    }
    probe = pixels[:2].to(input_device(model))
    try:
        with torch.no_grad():
            logits = logits_of(model(probe))
        facts["classes"] = int(logits.shape[-1])
    except (RuntimeError, ModelError, ValueError, IndexError) as error:
        text = f"the model cannot process images of shape {tuple(probe.shape[1:])}: {str(error).splitlines()[0]}"
        found.append(Finding("problem", text, "check image size and channels"))
        return facts, found
    if not bool(torch.isfinite(logits).all()):
        found.append(Finding("problem", "the model's logits are not finite", "check weights and input range"))
    found += _find_head(model, probe, head, facts)
    if not facts["norms"]:
        found.append(
            Finding(
                "warning", "no normalisation layers", "methods that train them cannot move; use one that trains all"
            )
        )
    else:
        listed = ", ".join(f"{count} {kind}" for kind, count in facts["norm_layers"].items())
        found.append(Finding("ok", f"normalisation layers: {listed} ({facts['norm_share']:.2g} % of the parameters)"))
    if "batch" in facts["norms"] and any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None for m in model.modules()
    ):
        found.append(Finding("note", "BatchNorm without stored statistics: it always uses those of the batch"))
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules()):
        found.append(Finding("note", "the model has dropout; it stays off during adaptation"))
    return facts, found


def _find_head(model: nn.Module, probe: Tensor, head: str | None, facts: dict[str, Any]) -> list[Finding]:
    try:
        name = head or ("head" if isinstance(model, Classifier) else last_linear(model, probe))
        separated = split(model, probe, name)
        facts["head"], facts["features"] = name, int(separated.features(probe).shape[-1])
        return [Finding("ok", f"head found: {name!r}, {facts['features']} features, {facts['classes']} classes")]
    except ModelError as error:
        remedy = "methods that need features cannot run; pass head='name' or build slomofast.Classifier(body, head)"
        return [Finding("warning", f"no head found: {error}", remedy)]


def _count_norms(model: nn.Module) -> dict[str, int]:
    kinds = [next(iter(norm_kinds(m)), "") for m in model.modules() if not any(m.children())]
    return {kind: kinds.count(kind) for kind in ("batch", "group", "layer", "other") if kind in kinds}


def _data_facts(images: Tensor, labels: Tensor | None, classes: int | None, batch_size: int) -> dict[str, Any]:
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    axes = [axis for axis in range(pixels.dim()) if axis != 1]
    highest = int(labels.max()) + 1 if labels is not None and len(labels) else None
    return {
        "shape": list(images.shape[1:]),
        "dtype": str(images.dtype).removeprefix("torch."),
        "minimum": float(images.min()),
        "maximum": float(images.max()),
        "mean": [round(v, 4) for v in pixels.mean(axes).tolist()],
        "std": [round(v, 4) for v in pixels.std(axes).tolist()],
        "classes": classes or highest,
        "batch_size": batch_size,
        "clean_error": None,
    }


def _compare_classes(model: dict[str, Any], data: dict[str, Any]) -> list[Finding]:
    have, need = model["classes"], data["classes"]
    if have is None or need is None:
        return []
    if have < need:
        remedy = "the head belongs to another label space: load weights trained on these classes"
        return [Finding("problem", f"the model knows {have} classes, the data has {need}", remedy)]
    if have > need:
        remedy = "name the model's class of each label (class_mask), or the scores count classes that cannot occur"
        return [Finding("note", f"the model knows {have} classes, the data has {need}", remedy)]
    return []


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    plain = model if isinstance(model, Normalised) else _Logits(model)
    report = check_normalisation(plain, images, labels)
    return {"clean_error": report.as_given, "clean_images": len(labels), "normalisation": report}


class _Logits(nn.Module):
    """A model that returns plain logits, whatever the one inside returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside = model

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.inside(x))


def _judge_accuracy(data: dict[str, Any], classes: int) -> list[Finding]:
    error, report = data["clean_error"], data.pop("normalisation")
    chance = 100 * (1 - 1 / classes)
    if not report.fits:
        return [Finding("problem", f"wrong input normalisation: {report}", "load the model with that mean and std")]
    if error > 0.9 * chance:
        remedy = "wrong weights, or labels in another order"
        return [Finding("problem", f"clean error {error:.1f} % is close to guessing ({chance:.1f} %)", remedy)]
    if error > 50:
        remedy = "adaptation sharpens what a model knows; from here it can also make it worse"
        return [Finding("warning", f"clean error {error:.1f} % on {data['clean_images']} images", remedy)]
    return [Finding("ok", f"clean error {error:.1f} % on {data['clean_images']} images; the normalisation fits")]


def _judge_batch(size: int, model: dict[str, Any]) -> list[Finding]:
    if "batch" not in model["norms"]:
        return []
    if size < SMALL_BATCH:
        remedy = "collect larger batches, use rotta or memo, or a network with GroupNorm or LayerNorm"
        return [Finding("warning", f"batches of {size} are too small for batch statistics", remedy)]
    if size < SHORT_BATCH:
        remedy = "100 or more are better for batch statistics"
        return [Finding("note", f"batches of {size} work", remedy)]
    return [Finding("ok", f"batches of {size} are enough for batch statistics")]


def _fit(info: MethodInfo, model: dict[str, Any], batch_size: int, source_data: bool) -> Fit:
    """One method's verdict; the first reason against it decides."""
    kinds = set(model["norms"]) or {"none"}
    trains_norms = "norm layers" in info.trains.lower()
    if model["classes"] is None:
        return Fit(info.name, "no", "the model cannot process these images")
    if info.needs_features and model["head"] is None:
        return Fit(info.name, "no", "needs features, and no head was found")
    if trains_norms and not model["norms"]:
        return Fit(info.name, "no", "trains normalisation layers, and the model has none")
    if info.name != "source" and not kinds & {*info.norms, "other"}:
        wanted = ", ".join(info.norms)
        return Fit(info.name, "no", f"works through {wanted} normalisation; the model has {', '.join(sorted(kinds))}")
    if info.needs_source and not source_data:
        return Fit(info.name, "careful", "needs labelled source images before the stream (fit_source)")
    if "batch" in kinds and batch_size < SMALL_BATCH and not info.batch_of_one and info.name != "source":
        return Fit(info.name, "careful", f"relies on batch statistics, and batches of {batch_size} are small")
    share = f", {model['norm_share']:.2g} % of the parameters" if trains_norms else ""
    return Fit(info.name, "fits", f"trains {info.trains}{share}")
