"""RDumb is ETA between two returns to the source."""

import by_hand
import numpy as np
import torch

import slomofast as sf


def test_it_is_eta_until_the_interval_and_afresh_after_it() -> None:
    dumb = sf.adapt(by_hand.network(), "rdumb", interval=3)
    eta, again = (sf.adapt(by_hand.network(), "eta") for _ in range(2))
    stream = [by_hand.inputs(seed=seed) for seed in range(5)]
    for x in stream[:3]:
        assert torch.equal(dumb(x), eta(x)), "the batch that ends the interval is predicted by the adapted model"
    assert np.allclose(by_hand.weights(dumb.student), by_hand.GAMMA_BETA)
    assert not np.allclose(by_hand.weights(eta.student), by_hand.GAMMA_BETA)
    assert not bool(dumb.started) and not dumb.optimizer_student.first.any()
    for x in stream[3:]:
        assert torch.equal(dumb(x), again(x))
    assert dumb.steps == 5


def test_batches_without_an_update_count_and_the_schedule_survives_a_save(tmp_path: object) -> None:
    nothing = torch.zeros(4, 4)
    adapter = sf.adapt(by_hand.network(), "rdumb", interval=3)
    adapter(nothing)
    adapter(by_hand.inputs())
    assert not np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA)
    adapter.save(f"{tmp_path}/a.pt")
    loaded = sf.load(f"{tmp_path}/a.pt", by_hand.network())
    loaded(nothing)
    assert np.allclose(by_hand.weights(loaded.student), by_hand.GAMMA_BETA)
