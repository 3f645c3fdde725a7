"""Reading weights: formats, wrappers, parts, mismatches, the normalisation they carry."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slomofast.core.errors import ConfigError, ModelError
from slomofast.models import (
    Normalised,
    check_normalisation,
    load_source,
    model_fingerprint,
    read_weights,
    save_weights,
)


@pytest.fixture
def small():
    torch.manual_seed(3)
    return load_source("wrn_10_1", classes=4)


def logits(model, side=32):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return model(torch.rand(3, 3, side, side, generator=generator))


def test_save_and_load_give_the_same_network(small, tmp_path):
    path = save_weights(small, tmp_path / "w.safetensors")
    again = load_source("wrn_10_1", path)
    assert not again.training
    assert torch.equal(logits(small), logits(again))
    assert model_fingerprint(small) == model_fingerprint(again)


def test_half_precision_is_widened(small, tmp_path):
    path = save_weights(small, tmp_path / "w.safetensors", half=True)
    again = load_source("wrn_10_1", path)
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    assert torch.allclose(logits(small), logits(again), atol=2e-2)
    assert path.stat().st_size < 0.6 * sum(4 * p.numel() for p in small.parameters())


@pytest.mark.parametrize("wrapper", ["state_dict", "model", None])
def test_checkpoints_with_wrappers_and_prefixes(small, tmp_path, wrapper):
    state = {f"module.{k}": v for k, v in small.state_dict().items()}
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "w.pt")
    again = load_source("wrn_10_1", tmp_path / "w.pt")
    assert torch.equal(logits(small), logits(again))


def test_parts_are_joined_and_contradictions_refused(small, tmp_path):
    state = {k: v.contiguous() for k, v in small.state_dict().items()}
    keys = list(state)
    save_file({k: state[k] for k in keys[:20]}, tmp_path / "a.safetensors")
    save_file({k: state[k] for k in keys[20:]}, tmp_path / "b.safetensors")
    again = load_source("wrn_10_1", [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert torch.equal(logits(small), logits(again))
    save_file({keys[0]: state[keys[0]] + 1}, tmp_path / "c.safetensors")
    with pytest.raises(ModelError, match="repeats"):
        read_weights([tmp_path / "a.safetensors", tmp_path / "c.safetensors"])
    with pytest.raises(ModelError, match="missing: "):
        load_source("wrn_10_1", tmp_path / "a.safetensors")


def test_mismatches_name_keys_and_shapes(small, tmp_path):
    state = dict(small.state_dict())
    state["fc_.weight"] = state.pop("fc.weight")
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"missing: fc.weight.*unexpected: fc_.weight \(nearest: fc.weight\)"):
        load_source("wrn_10_1", tmp_path / "w.pt", classes=4)
    path = save_weights(small, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"fc.weight has \(4, 64\), the network \(10, 64\).*classes="):
        load_source("wrn_10_1", path, classes=10)


def test_the_head_of_the_weights_decides_the_classes(small, tmp_path):
    path = save_weights(small, tmp_path / "w.safetensors")
    assert load_source("wrn_10_1", path).fc.out_features == 4


def test_a_normalisation_inside_the_checkpoint_is_used(small, tmp_path):
    extra = {"mu": torch.full((1, 3, 1, 1), 0.5), "sigma": torch.full((1, 3, 1, 1), 0.25)}
    torch.save({f"module.{k}": v for k, v in {**small.state_dict(), **extra}.items()}, tmp_path / "w.pt")
    again = load_source("wrn_10_1", tmp_path / "w.pt")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(again(x), small((x - 0.5) / 0.25), atol=1e-5)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match="no weight file"):
        load_source("wrn_10_1", tmp_path / "absent.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(ModelError, match="not a readable safetensors"):
        load_source("wrn_10_1", tmp_path / "cut.safetensors")
    (tmp_path / "cut.pt").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"cut.pt"):
        load_source("wrn_10_1", tmp_path / "cut.pt")
    torch.save({"epoch": 1}, tmp_path / "empty.pt")
    with pytest.raises(ModelError, match="holds no state dict"):
        load_source("wrn_10_1", tmp_path / "empty.pt")


def test_code_inside_a_checkpoint_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "crater"),))

    torch.save({"state_dict": Bomb()}, tmp_path / "bomb.pt")
    with pytest.raises(ModelError, match=r"bomb\.pt"):
        load_source("wrn_10_1", tmp_path / "bomb.pt")
    assert not (tmp_path / "crater").exists()


def test_fingerprint_follows_every_value(small):
    before = model_fingerprint(small)
    with torch.no_grad():
        small.bn1.running_mean[0] += 1e-6
    assert model_fingerprint(small) != before


def test_mean_and_std_come_together():
    with pytest.raises(ConfigError, match="come together"):
        load_source("wrn_10_1", mean=(0.5, 0.5, 0.5))
    with pytest.raises(ConfigError, match="positive"):
        load_source("wrn_10_1", mean=(0.5,) * 3, std=(0.5, 0, 0.5))


class Thresholds(torch.nn.Module):
    """Answers from the mean brightness; right only when its input is normalised with the values it expects."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        value = self.scale * x.mean((1, 2, 3))
        return torch.stack([-value, value], 1)


def test_the_probe_finds_the_normalisation():
    levels = torch.linspace(0.05, 0.95, 60)
    images = levels[:, None, None, None].expand(-1, 3, 8, 8)
    labels = (levels > 0.5).long()
    bare = check_normalisation(Thresholds(), images, labels)
    assert bare.as_given > 40
    assert bare.best == "half"
    assert not bare.fits
    assert "mean=(0.5, 0.5, 0.5)" in str(bare)
    fitted = check_normalisation(Normalised(Thresholds(), (0.5,) * 3, (0.5,) * 3), images, labels)
    assert fitted.as_given == 0
    assert fitted.fits


def test_the_real_wideresnet_makes_its_known_errors(shared_data):
    from slomofast.data import open_data

    model = load_source("wrn_40_2", shared_data / "cifar10_wrn40_2.safetensors")
    data = open_data(f"pack:{shared_data / 'cifar10_test.npz'}", size=200)
    images = data.clean(np.arange(200))
    report = check_normalisation(model, images[:30], torch.from_numpy(data.labels("")[:30]))
    assert report.fits
    with torch.inference_mode():
        answers = torch.cat([model(part.float() / 255) for part in images.split(100)]).argmax(1)
    error = 100 * (answers.numpy() != data.labels("")).mean()
    assert 8.7 - 6 < error < 8.7 + 6  # three standard errors of 200 images
