"""The shipped network: good on clean glyphs, hurt by corruptions, helped by the batch's own statistics."""

import copy

import numpy as np
import pytest
import torch

from slomofast.data import open_data
from slomofast.models import describe_model, load_source

COUNT = 400


@pytest.fixture(scope="module")
def data():
    return open_data("glyphs", size=COUNT)


@pytest.fixture(scope="module")
def network():
    return load_source("glyphs")


def error(model, images, labels):
    with torch.inference_mode():
        answers = torch.cat([model(part.float() / 255) for part in images.split(200)]).argmax(1)
    return 100 * float((answers.numpy() != labels).mean())


def test_it_knows_clean_letters(network, data):
    assert 0.2 < error(network, data.clean(np.arange(COUNT)), data.labels("fog")) < 11


def test_corruptions_hurt_and_batch_statistics_help(network, data):
    adapted = copy.deepcopy(network)
    for module in adapted.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
    clean = error(network, data.clean(np.arange(COUNT)), data.labels("fog"))
    source, statistics = [], []
    for domain in ("gaussian_noise", "impulse_noise", "fog", "contrast"):
        images = data.load(domain, 5, np.arange(COUNT))
        source.append(error(network, images, data.labels(domain)))
        statistics.append(error(adapted, images, data.labels(domain)))
    assert np.mean(source) > clean + 10
    assert np.mean(statistics) < np.mean(source) - 5


def test_its_file_is_small():
    path = describe_model("glyphs").weights
    assert path is not None
    assert path.stat().st_size < 3e6
