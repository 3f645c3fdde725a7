"""Networks of other packages: their normalisation is taken over, their absence and their misspelt names explained."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

import slomofast
from slomofast.core.errors import ConfigError, ModelError
from slomofast.core.split import split
from slomofast.models import Normalised, load_source, save_weights


class Tiny(torch.nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.fc = torch.nn.Linear(3, classes)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


class Published(SimpleNamespace):
    """The weights of a network, as torchvision lists them."""

    @property
    def __members__(self):
        return {name: value for name, value in vars(self).items() if name != "DEFAULT"}


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

    class Version(SimpleNamespace):
        def transforms(self):
            return SimpleNamespace(mean=[self.mean] * 3, std=[0.2] * 3)

    first, second = Version(mean=0.4), Version(mean=0.3)
    published = {
        "resnet50": Published(IMAGENET1K_V1=first, IMAGENET1K_V2=second, DEFAULT=second),
        "vit_h_14": Published(SWAG=second, DEFAULT=second),
    }
    models = SimpleNamespace(
        list_models=lambda: list(published),
        get_model_weights=published.get,
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


@pytest.mark.parametrize(
    ("name", "mean"), [("resnet50", 0.4), ("resnet50.IMAGENET1K_V2", 0.3), ("resnet50.DEFAULT", 0.3), ("vit_h_14", 0.3)]
)
def test_weights_of_torchvision_are_the_first_published_unless_named(packages, name, mean):
    assert load_source(f"torchvision:{name}").mean.flatten().tolist() == pytest.approx([mean] * 3)
    assert packages[name.partition(".")[0]] is True


def test_unknown_weights_are_named(packages):
    with pytest.raises(ConfigError, match=r"unknown weights of torchvision:resnet50 'IMAGENET1K_V3'.*'IMAGENET1K_V"):
        load_source("torchvision:resnet50.IMAGENET1K_V3")


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


MEAN, STD = [0.11, 0.52, 0.73], [0.9, 0.31, 0.27]


def normalised(x, mean, std):
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (mean, std))
    return (x - mean) / std


def check_adapts(model, side, methods=("tent", "slomo_fast")):
    """The head comes off, and each method takes a step that shows in its next answer."""
    x = torch.rand(8, 3, side, side, generator=torch.Generator().manual_seed(5))
    parts = split(model, x[:2])
    with torch.no_grad():
        assert torch.allclose(parts.head(parts.features(x)), model(x), atol=1e-4)
        before = model(x)
    for method in methods:
        adapter = slomofast.adapt(model, method, lr=0.01)
        assert adapter(x).shape == before.shape
        second = adapter(x)
        assert torch.isfinite(second).all()
        assert adapter.steps_taken_by_gradient
        assert not torch.allclose(second, before)
    with torch.no_grad():
        assert torch.equal(model(x), before), "the user's model is never changed"


class TestHuggingFace:
    """Tiny classifiers with random weights in a folder, as `save_pretrained` leaves them."""

    @pytest.fixture(params=["vit", "resnet", "convnext"])
    def saved(self, request, tmp_path):
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        if request.param == "vit":
            sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
            config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)
        elif request.param == "resnet":
            sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
            config = transformers.ResNetConfig(**sizes, num_labels=5)
        else:
            config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=5)
        model = transformers.AutoModelForImageClassification.from_config(config).eval()
        model.save_pretrained(tmp_path)
        self.write_processor(tmp_path, image_mean=MEAN, image_std=STD)
        return tmp_path, model

    def write_processor(self, folder, **facts):
        (folder / "preprocessor_config.json").write_text(
            json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, **facts})
        )

    @pytest.fixture
    def vit(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=16, num_labels=3)
        torch.manual_seed(1)
        model = transformers.ViTForImageClassification(config).eval()
        model.save_pretrained(tmp_path)
        return tmp_path, model

    @torch.no_grad()
    def test_logits_are_those_of_the_model_on_normalised_input(self, saved):
        folder, theirs = saved
        model = load_source(f"hf:{folder}")
        assert not model.training
        assert torch.allclose(model.mean.flatten(), torch.tensor(MEAN))
        assert torch.allclose(model.std.flatten(), torch.tensor(STD))
        x = torch.rand(4, 3, 32, 32)
        expected = theirs(pixel_values=normalised(x, MEAN, STD)).logits
        assert expected.std() > 0
        assert torch.allclose(model(x), expected, atol=1e-5)

    def test_it_adapts(self, saved):
        check_adapts(load_source(f"hf:{saved[0]}"), 32)

    @torch.no_grad()
    def test_a_processor_that_saved_itself(self, vit):
        transformers = pytest.importorskip("transformers")
        folder, _ = vit
        try:
            processor = transformers.ViTImageProcessor(image_mean=MEAN, image_std=STD)
        except ImportError as error:
            pytest.skip(str(error))
        processor.save_pretrained(folder)
        assert torch.allclose(load_source(f"hf:{folder}").std.flatten(), torch.tensor(STD))

    @torch.no_grad()
    def test_other_ways_of_scaling_become_part_of_the_normalisation(self, vit):
        folder, theirs = vit
        x = torch.rand(2, 3, 32, 32)
        self.write_processor(folder, do_normalize=False)
        assert torch.allclose(load_source(f"hf:{folder}")(x), theirs(pixel_values=x).logits, atol=1e-5)
        self.write_processor(folder, image_mean=0.5, image_std=0.5)
        model = load_source(f"hf:{folder}")
        assert torch.allclose(model(x), theirs(pixel_values=2 * x - 1).logits, atol=1e-5)
        self.write_processor(folder, do_normalize=False, rescale_factor=1 / 127.5, rescale_offset=True)
        assert torch.allclose(load_source(f"hf:{folder}")(x), model(x), atol=1e-5)

    def test_an_unknown_normalisation_is_not_guessed(self, vit):
        folder, theirs = vit
        with pytest.raises(ModelError, match=r"does not say how its input is normalised.*pass mean= and std="):
            load_source(f"hf:{folder}")
        model = load_source(f"hf:{folder}", mean=MEAN, std=STD)
        x = torch.rand(2, 3, 32, 32)
        with torch.no_grad():
            assert torch.allclose(model(x), theirs(pixel_values=normalised(x, MEAN, STD)).logits, atol=1e-5)

    def test_half_precision_checkpoints_are_widened(self, vit):
        folder, theirs = vit
        theirs.half().save_pretrained(folder)
        self.write_processor(folder, image_mean=MEAN, image_std=STD)
        model = load_source(f"hf:{folder}")
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model(torch.rand(1, 3, 32, 32)).dtype == torch.float32

    def test_another_head_and_weights_of_ones_own(self, vit, tmp_path):
        folder, theirs = vit
        self.write_processor(folder, image_mean=MEAN, image_std=STD)
        assert load_source(f"hf:{folder}", classes=7)(torch.rand(1, 3, 32, 32)).shape == (1, 7)
        with torch.no_grad():
            theirs.classifier.bias.fill_(3.0)
        path = save_weights(theirs, tmp_path / "own.safetensors")
        (folder / "model.safetensors").unlink()
        model = load_source(f"hf:{folder}", path)
        assert (model.model.model.classifier.bias == 3).all()

    def test_a_folder_without_a_model(self, tmp_path):
        pytest.importorskip("transformers")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ModelError, match="is no image classifier that can be loaded"):
            load_source(f"hf:{tmp_path / 'empty'}")


def without_download(tmp_path, network):
    """The network's random weights in a file: given those, none are downloaded."""
    return save_weights(network, tmp_path / "random.safetensors")


class TestTorchvision:
    @pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_32"])
    def test_random_weights_under_its_own_normalisation(self, name, tmp_path):
        torchvision = pytest.importorskip("torchvision")
        torch.manual_seed(0)
        theirs = torchvision.models.get_model(name, weights=None).eval()
        model = load_source(f"torchvision:{name}", without_download(tmp_path, theirs))
        preset = torchvision.models.get_model_weights(name).IMAGENET1K_V1.transforms()
        assert torch.allclose(model.mean.flatten(), torch.tensor(preset.mean))
        assert torch.allclose(model.std.flatten(), torch.tensor(preset.std))
        x = torch.rand(2, 3, 224, 224)
        with torch.no_grad():
            assert torch.allclose(model(x), theirs(normalised(x, preset.mean, preset.std)), atol=1e-4)

    def test_another_head_and_a_step(self):
        pytest.importorskip("torchvision")
        torch.manual_seed(0)
        model = load_source("torchvision:resnet18", classes=7)
        assert model.model.fc.out_features == 7
        check_adapts(model, 64)


class TestTimm:
    @pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto"])
    def test_random_weights_under_its_own_normalisation(self, name, tmp_path):
        timm = pytest.importorskip("timm")
        torch.manual_seed(0)
        theirs = timm.create_model(name, pretrained=False).eval()
        model = load_source(f"timm:{name}", without_download(tmp_path, theirs))
        cfg = theirs.pretrained_cfg
        assert torch.allclose(model.mean.flatten(), torch.tensor(cfg["mean"]))
        assert torch.allclose(model.std.flatten(), torch.tensor(cfg["std"]))
        x = torch.rand(2, 3, 224, 224)
        with torch.no_grad():
            assert torch.allclose(model(x), theirs(normalised(x, cfg["mean"], cfg["std"])), atol=1e-4)

    def test_a_step(self, tmp_path):
        timm = pytest.importorskip("timm")
        torch.manual_seed(0)
        theirs = timm.create_model("resnet18", pretrained=False, num_classes=7)
        check_adapts(load_source("timm:resnet18", without_download(tmp_path, theirs), classes=7), 64)

    def test_a_misspelt_name(self):
        pytest.importorskip("timm")
        with pytest.raises(ConfigError, match="did you mean"):
            load_source("timm:resnet1888")
