"""Members that vote, and what they take for usual."""

from __future__ import annotations

import math

import torch

from slomofast.losses import label_calibration
from slomofast.voting import Vote

YES = torch.tensor(True)


def test_members_count_as_often_as_they_looked() -> None:
    student, fast = torch.randn(6, 4), torch.randn(6, 4)
    for calibrate, soften in ((True, True), (True, False), (False, True), (False, False)):
        vote = Vote(4, {"fast": 2}, calibrate=calibrate, soften=soften, smoothing=3.0)
        total = student + 2 * fast
        if calibrate:
            total = label_calibration(total, 3.0)
        total = total / 3 if soften else total
        expected = total.log_softmax(1) if calibrate else total
        torch.testing.assert_close(vote({"student": student, "fast": fast}), expected)


def test_the_usual_classes_are_the_mean_of_all_batches_then_of_the_last() -> None:
    vote = Vote(4, {"fast": 2}, relative=True)
    batches_of = [torch.randn(30, 4) for _ in range(25)]
    seen = []
    for step, logits in enumerate(batches_of):
        before = vote.usual.clone()
        vote.remember({"fast": logits}, step, YES)
        seen.append(((2 * logits).softmax(1).sum(0) + 1) / 34)
        if step < 20:
            torch.testing.assert_close(vote.usual, torch.stack(seen).mean(0))
        else:
            torch.testing.assert_close(vote.usual, 0.95 * before + 0.05 * seen[-1])
    vote.remember({"fast": torch.full((30, 4), math.nan)}, 25, YES)
    assert vote.usual.isfinite().all()


def test_a_burst_of_one_class_is_noticed_and_looking_does_not_teach() -> None:
    vote = Vote(4, {}, relative=True)
    mixed = 3 * torch.eye(4).repeat(50, 1)
    vote.remember({"fast": mixed}, 0, YES)
    unsure = torch.tensor([[0.9, 1.0, 0.0, 0.0]])
    burst = torch.cat([3 * torch.eye(4)[:1].repeat(99, 1), unsure])
    before = vote.usual.clone()
    assert int(vote({"fast": burst})[-1].argmax()) == 0  # among a hundred of the first class the second is unlikely
    assert int(vote({"fast": torch.cat([mixed, unsure])})[-1].argmax()) == 1
    assert torch.equal(vote.usual, before)


def test_a_lasting_preference_is_no_burst() -> None:
    torch.manual_seed(0)
    logits = {"fast": 3 * torch.randn(200, 4) + torch.tensor([2.0, 0.0, 0.0, 0.0])}  # the first class, in every batch
    plain, relative = Vote(4, {}), Vote(4, {}, relative=True)
    for vote in (plain, relative):
        vote.remember(logits, 0, YES)
    own = logits["fast"].log_softmax(1)
    moved = [float((vote(logits) - own).abs().mean()) for vote in (plain, relative)]
    assert moved[1] < moved[0] / 10, moved  # smoothing leaves a trace
