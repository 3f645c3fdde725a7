"""The plain model: the baseline every method has to beat."""

from __future__ import annotations

from torch import Tensor

from slomofast.core.adapter import Adapter
from slomofast.core.params import copy_network
from slomofast.core.registry import register
from slomofast.core.split import Classifier


@register(
    "source",
    paper="-",
    trains="nothing",
    norms=("batch", "group", "layer", "none"),
    batch_of_one=True,
    returns="logits of the source model",
)
class Source(Adapter):
    """Predict with the source model as it is; nothing is learned."""

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, statistics="source")

    def adapt(self, x: Tensor) -> Tensor:
        return self.student(x)
