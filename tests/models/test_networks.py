"""The networks: sizes, published parameter names, shapes."""

import pytest
import torch

from slomofast.core.errors import ConfigError
from slomofast.models import describe_model, list_models, load_source

PARAMETERS = {
    ("wrn_28_10", 10): 36_479_194,
    ("wrn_40_2", 10): 2_243_546,
    ("resnext_29", 10): 6_807_882,
    ("resnet_18", 1000): 11_689_512,
    ("resnet_50", 1000): 25_557_032,
}


@pytest.mark.parametrize(("name", "classes"), PARAMETERS)
def test_sizes_are_the_published_ones(name, classes):
    with torch.device("meta"):
        network = describe_model(name).build(classes)
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name, classes]


KEYS = {
    "wrn_40_2": [
        "conv1.weight",
        "block1.layer.0.bn1.running_mean",
        "block1.layer.0.convShortcut.weight",
        "block3.layer.5.conv2.weight",
        "bn1.weight",
        "fc.bias",
    ],
    "resnext_29": [
        "conv_1_3x3.weight",
        "bn_1.running_var",
        "stage_1.0.conv_reduce.weight",
        "stage_1.0.bn_reduce.weight",
        "stage_2.0.conv_conv.weight",
        "stage_2.2.bn.bias",
        "stage_3.1.conv_expand.weight",
        "stage_3.2.bn_expand.weight",
        "stage_1.0.downsample.0.weight",
        "stage_1.0.downsample.1.running_mean",
        "classifier.weight",
    ],
    "resnet_50": [
        "conv1.weight",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.bias",
        "layer3.5.conv3.weight",
        "layer4.2.bn3.running_var",
        "fc.weight",
    ],
    "resnet_26_gn": ["conv1.weight", "layer1.0.bn1.weight", "layer3.3.conv2.weight", "bn.weight", "fc.weight"],
}


@pytest.mark.parametrize("name", KEYS)
def test_parameters_carry_the_published_names(name):
    with torch.device("meta"):
        network = describe_model(name).build(10)
    missing = [key for key in KEYS[name] if key not in network.state_dict()]
    assert not missing


def test_the_first_block_of_a_narrow_wrn_has_no_projection():
    with torch.device("meta"):
        keys = describe_model("wrn_10_1").build(10).state_dict()
    assert "block1.layer.0.convShortcut.weight" not in keys
    assert "block2.layer.0.convShortcut.weight" in keys


@pytest.mark.parametrize("name", [n for n in list_models() if n not in ("wrn_28_10", "resnet_50", "resnet_50_64")])
def test_every_network_gives_logits_and_sees_its_input(name):
    torch.manual_seed(0)
    info = describe_model(name)
    network = info.build(7).eval()
    side = min(info.image_size, 64)
    with torch.no_grad():
        logits = network(torch.rand(2, 3, side, side))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()
    assert not torch.allclose(logits[0], logits[1])


def test_the_64_pixel_stem_keeps_resolution():
    small = describe_model("resnet_18_64").build(200)
    assert small.conv1.weight.shape == (64, 3, 3, 3)
    assert small.conv1.stride == (1, 1)


def test_a_wide_block_that_changes_shape_shortcuts_from_the_activated_input():
    from slomofast.models.wideresnet import WideBlock

    block = WideBlock(2, 4, 1, 0.0).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 2, 5, 5)
    activated = torch.relu(block.bn1(x))
    assert torch.allclose(block(x), block.convShortcut(activated))
    same = WideBlock(4, 4, 1, 0.0).eval()
    torch.nn.init.zeros_(same.conv2.weight)
    y = torch.randn(1, 4, 5, 5)
    assert torch.equal(same(y), y)


@pytest.mark.parametrize("spelling", ["WRN-28-10", "wrn28_10", "WideResNet-28-10", "wrn_28_10"])
def test_spellings_of_a_wide_resnet(spelling):
    assert describe_model(spelling).name == "wrn_28_10"


def test_unknown_names_and_impossible_depths_are_explained():
    with pytest.raises(ConfigError, match="did you mean 'resnet_50'"):
        load_source("resnet_5O")
    with pytest.raises(ConfigError, match="6 n \\+ 4"):
        load_source("wrn_27_2")
    with pytest.raises(ConfigError, match="classes must be at least 2"):
        load_source("wrn_10_1", classes=1)
