"""Networks of other packages: their normalisation is taken over, their absence and their misspelt names explained."""

import sys
from types import SimpleNamespace

import pytest
import torch

from slomofast.core.errors import ConfigError
from slomofast.models import Normalised, load_source, save_weights


class Tiny(torch.nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.fc = torch.nn.Linear(3, classes)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


@pytest.fixture
def packages(monkeypatch):
    """Stand-ins with the few functions of torchvision and timm that are called."""
    asked = {}

    def create(name, pretrained, num_classes=5):
        asked[name] = pretrained
        return Tiny(num_classes)

    timm = SimpleNamespace(
        is_model=lambda name: name == "vit_small",
        list_models=lambda: ["vit_small", "vit_large"],
        create_model=create,
        data=SimpleNamespace(resolve_data_config=lambda _, model: {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.4)}),
    )
    weights = SimpleNamespace(
        DEFAULT=SimpleNamespace(transforms=lambda: SimpleNamespace(mean=[0.4] * 3, std=[0.2] * 3))
    )
    models = SimpleNamespace(
        list_models=lambda: ["resnet50"],
        get_model_weights=lambda name: weights,
        get_model=lambda name, weights, num_classes=5: create(name, weights is not None, num_classes),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    return asked


@pytest.mark.parametrize(
    ("name", "mean", "std"), [("timm:vit_small", (0.1, 0.2, 0.3), (0.5, 0.5, 0.4)), ("torchvision:resnet50", 0.4, 0.2)]
)
def test_the_package_decides_the_normalisation(packages, name, mean, std):
    model = load_source(name)
    assert isinstance(model, Normalised)
    assert packages[name.partition(":")[2]] is True
    x = torch.rand(2, 3, 4, 4)
    mean, std = (torch.tensor(v).expand(3).view(1, 3, 1, 1) for v in (mean, std))
    assert torch.allclose(model(x), model.model((x - mean) / std))


def test_own_weights_replace_the_pretrained_ones(packages, tmp_path):
    path = save_weights(Tiny(), tmp_path / "w.safetensors")
    model = load_source("timm:vit_small", path, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert packages["vit_small"] is False
    assert torch.equal(model.model.fc.weight, load_source("timm:vit_small", path).model.fc.weight)
    assert model.mean.sum() == 0


def test_misspelt_names_and_absent_packages(packages, monkeypatch):
    with pytest.raises(ConfigError, match="timm has no model 'vit_smal'; did you mean vit_small"):
        load_source("timm:vit_smal")
    with pytest.raises(ConfigError, match="did you mean resnet50"):
        load_source("torchvision:resnet5O")
    with pytest.raises(ConfigError, match="names no model"):
        load_source("timm:")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="pip install 'slomofast\\[imagenet\\]'"):
        load_source("timm:vit_small")
