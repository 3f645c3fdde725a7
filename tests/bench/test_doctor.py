from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slomofast.bench.doctor import Diagnosis, diagnose
from slomofast.core.registry import list_methods
from slomofast.core.split import Classifier
from slomofast.models import NORMALISATIONS, load_source


def net(norm: nn.Module | None) -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, padding=1), *([norm] if norm else []), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4)).eval()


def images(count: int = 80) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def verdicts(diagnosis: Diagnosis) -> dict[str, str]:
    return {fit.method: fit.verdict for fit in diagnosis.fits}


def levels(diagnosis: Diagnosis, word: str) -> list[str]:
    return [finding.level for finding in diagnosis.findings if word in finding.text]


def test_a_healthy_pair() -> None:
    diagnosis = diagnose(net(nn.BatchNorm2d(8)), images(), classes=4, batch_size=100)
    assert diagnosis.healthy and diagnosis.model["norms"] == ["batch"]
    assert diagnosis.model["norm_layers"] == {"batch": 1}
    assert (diagnosis.model["classes"], diagnosis.model["features"]) == (4, 8)
    assert diagnosis.model["norm_share"] == pytest.approx(100 * 16 / (3 * 8 * 9 + 8 + 16 + 36))
    assert diagnosis.data["mean"] == pytest.approx([0.5] * 3, abs=0.05)
    assert levels(diagnosis, "head found") == ["ok"] and levels(diagnosis, "[0, 1]") == ["ok"]
    assert set(verdicts(diagnosis)) == set(list_methods())
    assert verdicts(diagnosis)["tent"] == verdicts(diagnosis)["slomo_fast"] == "fits"


def test_layers_decide_which_methods_fit() -> None:
    grouped = verdicts(diagnose(net(nn.GroupNorm(2, 8)), images()))
    assert grouped["bn"] == "no" and grouped["tent"] == "fits"
    bare = verdicts(diagnose(net(None), images()))
    assert bare["tent"] == bare["slomo_fast"] == "no"
    assert bare["cotta"] == bare["source"] == "fits"


def test_small_batches_are_bad_for_batch_statistics_only() -> None:
    small = diagnose(net(nn.BatchNorm2d(8)), images(4), batch_size=4)
    assert levels(small, "too small for batch statistics") == ["warning"]
    assert verdicts(small)["tent"] == "careful" and verdicts(small)["memo"] == "fits"
    assert verdicts(diagnose(net(nn.GroupNorm(2, 8)), images(4), batch_size=4))["tent"] == "fits"


def test_methods_with_source_data_say_so() -> None:
    network = net(nn.BatchNorm2d(8))
    assert verdicts(diagnose(network, images()))["eata"] == "careful"
    assert verdicts(diagnose(network, images(), source_data=True))["eata"] == "fits"


@pytest.mark.parametrize(
    ("change", "word", "level"),
    [
        (lambda x: (x * 255).to(torch.uint8), "uint8", "warning"),
        (lambda x: x * 255, "bytes stored as floats", "problem"),
        (lambda x: (x - 0.5) / 0.25, "already normalised", "note"),
        (lambda x: x * 0 + 0.5, "hardly vary", "warning"),
        (lambda x: x.masked_fill(x > 0.99, float("nan")), "NaN or Inf", "problem"),
    ],
)
def test_odd_images_are_noticed(change, word: str, level: str) -> None:
    diagnosis = diagnose(net(nn.BatchNorm2d(8)), change(images()))
    assert levels(diagnosis, word) == [level]
    assert diagnosis.healthy is (level != "problem")


def test_wrong_number_of_classes() -> None:
    assert levels(diagnose(net(None), images(), classes=9), "knows 4 classes") == ["problem"]
    assert levels(diagnose(net(None), images(), classes=2), "knows 4 classes") == ["note"]


class Brightness(nn.Module):
    """Two classes, dark and bright, for images shifted to mean zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 2)
        self.fc.weight.data = torch.tensor([[-1.0], [1.0]])
        self.fc.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((1, 2, 3))[:, None])


def test_a_missing_normalisation_is_found() -> None:
    level = torch.linspace(0.1, 0.9, 40)
    sample, labels = level[:, None, None, None].expand(40, 3, 4, 4).contiguous(), (level > 0.5).long()
    wrong = diagnose(Brightness(), sample, labels, clean=(sample, labels))
    assert levels(wrong, "wrong input normalisation") == ["problem"]
    assert wrong.data["clean_error"] == pytest.approx(50)
    from slomofast.models import Normalised

    right = diagnose(Normalised(Brightness(), *NORMALISATIONS["half"]), sample, labels, clean=(sample, labels))  # type: ignore[misc]
    assert right.healthy and right.data["clean_error"] < 5


def test_a_model_that_knows_nothing_is_noticed() -> None:
    sample = torch.rand(100, 3, 8, 8)
    diagnosis = diagnose(net(nn.BatchNorm2d(8)), sample, clean=(sample, torch.arange(100) % 4))
    assert any(finding.level == "problem" and "close to guessing" in finding.text for finding in diagnosis.findings)


def test_images_of_the_wrong_shape() -> None:
    diagnosis = diagnose(load_source("wrn_10_1"), torch.rand(4, 1, 8, 8))
    assert levels(diagnosis, "cannot process images of shape (1, 8, 8)") == ["problem"]
    assert set(verdicts(diagnosis).values()) == {"no"}


class Convolutional(nn.Module):
    """A head that is no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


def test_a_head_that_cannot_be_found() -> None:
    diagnosis = diagnose(Convolutional().eval(), images())
    assert levels(diagnosis, "no head found") == ["warning"]
    assert verdicts(diagnosis)["slomo_fast"] == "no" and verdicts(diagnosis)["tent"] == "fits"


def test_the_model_is_left_as_it_was() -> None:
    network = net(nn.BatchNorm2d(8)).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    diagnosis = diagnose(network, images(), clean=(images(), torch.zeros(80, dtype=torch.int64)))
    assert network.training and all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert levels(diagnosis, "train mode") == ["note"]


class Cosine(nn.Module):
    """A head that is no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z) @ nn.functional.normalize(self.weight).T


def test_a_classifier_brings_its_head() -> None:
    diagnosis = diagnose(Classifier(net(nn.BatchNorm2d(8))[:-1], Cosine()).eval(), images())
    assert levels(diagnosis, "head found: 'head', 8 features") == ["ok"]
    assert verdicts(diagnosis)["slomo_fast"] == "fits"
