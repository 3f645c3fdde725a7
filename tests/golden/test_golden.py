"""Every method still does what it did when its trace was frozen."""

import numpy as np
import pytest
import regenerate
import torch

import slomofast as sf

TOLERANCE = 1e-3


@pytest.mark.parametrize("kind", regenerate.NETS)
@pytest.mark.parametrize("method", regenerate.own_methods())
def test_trace(method: str, kind: str) -> None:
    expected = regenerate.stored().get(method, {}).get(kind)
    if expected is None:
        pytest.fail(f"{method} has no frozen trace on the {kind} network; run: {regenerate.COMMAND} {method}")
    found = regenerate.trace(method, kind)
    assert found.keys() == expected.keys()
    for step, rows in expected.items():
        assert np.allclose(found[step], rows, rtol=TOLERANCE, atol=TOLERANCE), (
            f"{method} on the {kind} network left its frozen trace at step {step}, by up to "
            f"{np.abs(np.subtract(found[step], rows)).max():.4f}. If that is meant: {regenerate.COMMAND} {method}"
        )


def test_no_trace_outlives_its_method() -> None:
    gone = set(regenerate.stored()) - set(regenerate.own_methods())
    assert not gone, f"traces of methods that are gone: {sorted(gone)}; run: {regenerate.COMMAND}"


@pytest.mark.parametrize("kind", regenerate.NETS)
def test_the_stream_is_worth_freezing(kind: str) -> None:
    """Selective methods take some samples and leave others, so their traces say something."""
    net = regenerate.network(kind)
    with torch.no_grad():
        p = torch.cat([net(x) for x in regenerate.stream()]).softmax(1)
    entropy = -(p * p.log()).sum(1)
    sure = float((entropy < 0.4 * np.log(regenerate.CLASSES)).float().mean())
    assert 0.1 < sure < 0.9 and len(p.argmax(1).unique()) >= 3
    traces = regenerate.stored()
    learning = [m for m in traces if not sf.describe(m).trains.startswith("nothing")]
    quiet = [
        m
        for m in learning
        if min(regenerate.distance(traces[m][kind], traces[other][kind]) for other in ("source", "bn")) < 10 * TOLERANCE
    ]
    assert not quiet, f"these methods learn nothing on the {kind} network: {quiet}"
