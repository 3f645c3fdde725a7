"""Features and head of networks the library has never seen."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import slomofast as sf
from slomofast.core.errors import ModelError
from slomofast.core.split import last_linear, split


class Odd(nn.Module):
    """Layers declared out of order, a decoy head, a residual path, keyword-only switches, a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(6, 3)
        self.decoy = nn.Linear(3, 3)
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.gate = nn.Linear(6, 6)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        z = self.norm(self.stem(x)).relu().mean((2, 3))
        z = z + torch.sigmoid(self.gate(z)) * scale
        return self.answer(z), z


class LikeHuggingFace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.LayerNorm(8))
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.classifier(self.body(x)), hidden_states=None)


class ConvolutionalHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).mean((2, 3))


@pytest.mark.parametrize("net", [Odd(), LikeHuggingFace()], ids=["odd", "huggingface"])
@pytest.mark.parametrize("method", ["slomo_fast", "slomo_fast_star", "tent"])
def test_unseen_network_in_two_lines(net: nn.Module, method: str) -> None:
    adapter = sf.adapt(net, method)
    logits = adapter(torch.rand(5, 3, 4, 4))
    assert logits.shape == (5, 3)


def test_head_is_the_layer_that_makes_the_logits() -> None:
    net, probe = Odd().eval(), torch.rand(2, 3, 4, 4)
    assert last_linear(net, probe) == "answer"
    found = split(net, probe)
    z, y = found.both(probe)
    assert z.shape == (2, 6)
    torch.testing.assert_close(y, net(probe)[0])
    assert isinstance(net.answer, nn.Linear)


def test_head_not_found_says_what_to_pass() -> None:
    with pytest.raises(ModelError, match=r"Pass head='name.*Classifier\(body, head\)"):
        sf.adapt(ConvolutionalHead(), "slomo_fast")(torch.rand(2, 3, 4, 4))
    with pytest.raises(ModelError, match=r"no layer 'nope'.*answer"):
        sf.adapt(Odd(), "slomo_fast", head="nope")(torch.rand(2, 3, 4, 4))


def test_methods_that_need_no_features_take_any_head() -> None:
    assert sf.adapt(ConvolutionalHead(), "tent")(torch.rand(2, 3, 4, 4)).shape == (2, 3)


def test_explicit_classifier() -> None:
    net = ConvolutionalHead()
    body = nn.Sequential(net.body, nn.AdaptiveAvgPool2d(1))
    head = nn.Sequential(net.head, nn.Flatten())
    flat = nn.Sequential(nn.Flatten())
    own = sf.Classifier(nn.Sequential(body, flat), nn.Sequential(nn.Unflatten(1, (6, 1, 1)), head))
    x = torch.rand(4, 3, 4, 4)
    torch.testing.assert_close(own.eval()(x), net.eval()(x))
    assert sf.adapt(own, "slomo_fast")(x).shape == (4, 3)


@dataclass
class Wrong:
    values: Tensor


class Silent(nn.Module):
    def forward(self, x: Tensor) -> Wrong:
        return Wrong(x)


def test_output_without_logits_is_explained() -> None:
    with pytest.raises(ModelError, match=r"Wrong.*Wrap the model"):
        sf.adapt(Silent(), "source")(torch.rand(2, 3))


def test_not_a_module() -> None:
    with pytest.raises(ModelError, match=r"expected an nn.Module, got str"):
        sf.adapt("resnet50", "tent")  # type: ignore[arg-type]


def test_network_without_norm_layers_still_runs() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match="no norm layers to train"):
        adapter = sf.adapt(net, "tent", probe=torch.rand(2, 3, 4, 4))
    x = torch.rand(4, 3, 4, 4)
    torch.testing.assert_close(adapter(x), net(x))
    star = sf.adapt(net, "slomo_fast_star")
    before = star(x).clone()
    assert not torch.equal(star.predict(x), before)


def test_half_precision_weights_are_widened() -> None:
    net = LikeHuggingFace().to(torch.bfloat16)
    assert sf.adapt(net, "slomo_fast")(torch.rand(4, 3, 4, 4)).dtype == torch.float32
    assert next(net.parameters()).dtype == torch.bfloat16
