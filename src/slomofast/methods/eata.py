"""EATA: ETA with a penalty that keeps the important normalisation weights near the source.

How much a weight matters is its diagonal Fisher information, estimated once from source images that the model labels
itself. Moving a weight costs its Fisher information times the squared distance, so what the source task needs stays.

S. Niu, J. Wu, Y. Zhang, Y. Chen, S. Zheng, P. Zhao, M. Tan: "Efficient Test-Time Model Adaptation without Forgetting",
ICML 2022. Returned are the logits of the whole batch from before the update.

The Fisher information is the mean square of batch gradients, not of single images', so it depends on the batch size of
the source loader; the published weights belong to the batch size of the stream.

Departures: as for ETA. `fisher="stream"` needs no source: the first `fisher_images` images of the stream stand for it,
each batch under the weights it meets; a penalty of weight zero, or `fisher="none"`, is ETA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from slomofast.core.config import option
from slomofast.core.errors import ConfigError
from slomofast.core.params import flatten, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.methods.eta import Eta, EtaConfig


@dataclass(frozen=True)
class EataConfig(EtaConfig):
    """Options of EATA."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {**EtaConfig.PRESETS["imagenet"], "fisher_weight": 2000.0},
        "source_free": {"fisher": "stream"},
    }

    fisher: Literal["source", "stream", "none"] = option("source", "images that tell how much a weight matters")
    fisher_weight: float = option(1.0, "weight of the penalty", low=0.0)
    fisher_images: int = option(2000, "images for the estimate", low=1)


@register("eata", paper="arXiv:2204.02610", trains="norm layers", needs_source=True)
class Eata(Eta):
    """ETA that pays for moving weights which the source task needs."""

    Config: ClassVar[type[EataConfig]] = EataConfig
    config: EataConfig
    source: Tensor
    fisher: Tensor
    fisher_batches: Tensor

    def build(self, model: Classifier) -> None:
        super().build(model)
        weights = flatten(trainable(self.student)) if trainable(self.student) else torch.zeros(0, device=self.device)
        self.register_buffer("source", weights)
        self.register_buffer("fisher", torch.zeros_like(weights))
        self.register_buffer("fisher_batches", torch.zeros((), device=self.device))
        self.fisher_seen = 0  # images, counted on the host: it decides whether another gradient is needed

    @property
    def needs_source(self) -> bool:
        return self.config.fisher == "source" and self.config.fisher_weight > 0

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        if self.config.fisher != "source":
            raise ConfigError(f"fisher={self.config.fisher!r} takes nothing from source data; drop the call")
        # a second call starts over
        self.fisher_seen = 0
        self.fisher.zero_()
        self.fisher_batches.zero_()
        for images, _ in loader:
            left = self.config.fisher_images - self.fisher_seen
            self._add_to_fisher(self.student(images[:left]))
            if self.fisher_seen >= self.config.fisher_images:
                break
        if not bool(torch.isfinite(self.fisher).all()):
            raise ConfigError("the source images give gradients that are not finite; check images and model")

    @property
    def estimating(self) -> bool:
        """Whether this batch of the stream counts for the importance of weights."""
        config = self.config
        wanted = config.fisher == "stream" and config.fisher_weight > 0 and bool(trainable(self.student))
        return wanted and self.fisher_seen < config.fisher_images

    def look(self, x: Tensor) -> Tensor:
        # estimating takes a second gradient, which compiled and recorded passes do not allow
        return self.plainly(self.student, x) if self.estimating else super().look(x)

    def penalty(self, logits: Tensor) -> Tensor:
        """fisher_weight * sum_k F_k (theta_k - theta0_k)^2."""
        config, moving = self.config, trainable(self.student)
        if config.fisher == "none" or config.fisher_weight == 0 or not moving:
            return super().penalty(logits)
        if self.estimating:
            self._add_to_fisher(logits, keep_graph=True)
        theta = torch.cat([p.reshape(-1) for p in moving])
        loss = config.fisher_weight * (self.fisher * (theta - self.source).square()).sum()
        self.log("loss_penalty", loss)
        return loss

    def _add_to_fisher(self, logits: Tensor, keep_graph: bool = False) -> None:
        """Take the squared gradient of one batch, under the model's own labels, into the running mean."""
        self.fisher_seen += logits.shape[0]
        moving = trainable(self.student)
        if not moving:
            return
        loss = F.cross_entropy(logits.float(), logits.detach().argmax(1))
        gradient = flatten(torch.autograd.grad(loss, moving, retain_graph=keep_graph)).float()
        usable = self.usable(torch.isfinite(gradient).all()) if keep_graph else torch.ones_like(self.started)
        self.fisher_batches += usable
        change = (gradient.square() - self.fisher) / self.fisher_batches.clamp(min=1)
        self.fisher += torch.where(usable, change, 0.0)

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "fisher_seen": getattr(self, "fisher_seen", 0)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.fisher_seen = int(state["fisher_seen"])
