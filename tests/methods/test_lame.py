"""LAME against a plain NumPy version written from the equations."""

import by_hand
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.methods.lame import affinity, agree


def reference(features: np.ndarray, z: np.ndarray, neighbours: int = 5, pull: float = 1.0) -> np.ndarray:
    """Assignments (B, C), loop by loop."""
    batch = len(z)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    distance = np.array([[np.linalg.norm(a - b) for b in unit] for a in unit])
    sigma = np.mean([sorted(row)[min(neighbours, batch) - 1] for row in distance])
    w = np.exp(-(distance**2) / (2 * sigma**2))
    unary = -np.log(by_hand.softmax(z) + 1e-10)
    y, old = by_hand.softmax(-unary), None
    for t in range(100):
        pair = pull * w @ y
        y = by_hand.softmax(-unary + pair)
        energy = (unary * y - pull * pair * y + y * np.log(np.maximum(y, 1e-20))).sum()
        if t > 1 and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return y


def test_a_batch_by_hand() -> None:
    net = by_hand.network()
    adapter = sf.adapt(net, "lame")
    x = by_hand.inputs(9)
    with torch.no_grad():
        features, z = net[0](x).numpy().astype(float), net(x).numpy().astype(float)
    expected = reference(features, z)
    found = adapter(x)
    assert np.allclose(found.exp().numpy(), expected, atol=1e-4)
    assert np.allclose(found.exp().sum(1).numpy(), 1.0, atol=1e-5)
    assert not np.allclose(expected, by_hand.softmax(z), atol=0.05), "the correction must do something"
    assert torch.equal(adapter.predict(x), found) and adapter.trainable_share() == 0


def test_neighbours_win_over_one_doubtful_member() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.01], [1.0, 0.02], [0.0, 1.0], [0.01, 1.0]])
    logits = torch.tensor([[3.0, 0.0], [3.0, 0.0], [-0.3, 0.0], [0.0, 3.0], [0.0, 3.0]])
    after = agree(logits, affinity(features, "rbf", 2)).argmax(1)
    assert logits.argmax(1).tolist() == [0, 0, 1, 1, 1] and after.tolist() == [0, 0, 0, 1, 1]


def test_affinities() -> None:
    features = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    root2 = 2**0.5
    sigma = (0.0 + 0.0 + root2) / 3  # second smallest of each row, the zero self-distance counts
    far = np.exp(-2.0 / (2 * sigma**2))
    expected = [[1, 1, far], [1, 1, far], [far, far, 1]]
    assert np.allclose(affinity(features, "rbf", 2).numpy(), expected, atol=1e-6)
    knn = affinity(features, "knn", 1)
    assert knn[0].tolist() == [0, 1, 0] and knn[1].tolist() == [1, 0, 0] and knn[2].sum() == 1 and knn[2, 2] == 0
    assert np.allclose(affinity(features, "linear", 1).numpy(), [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-6)


@pytest.mark.parametrize("kind", ["rbf", "knn"])
def test_a_batch_of_one_and_identical_images_keep_their_prediction(kind: str) -> None:
    net = by_hand.network()
    adapter = sf.adapt(net, "lame", affinity=kind)
    x = by_hand.inputs(1)
    with torch.no_grad():
        expected = net(x).log_softmax(1)
    assert torch.allclose(adapter(x), expected, atol=1e-5)
    if kind == "rbf":
        assert torch.allclose(adapter(x.expand(6, 4)), expected.expand(6, 3), atol=1e-5)


def test_batchnorm_uses_the_source_statistics() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    x = by_hand.inputs(6)
    adapter = sf.adapt(net, "lame", pull=0.0)
    with torch.no_grad():
        # as probabilities: the method keeps them away from zero, which a logarithm would show
        assert torch.allclose(adapter(5 + 2 * x).exp(), net(5 + 2 * x).softmax(1), atol=1e-4)
