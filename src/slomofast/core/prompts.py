"""Prompt tokens for transformers: found by watching a batch go through, no architecture is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slomofast.core.errors import ModelError
from slomofast.core.rng import Rng
from slomofast.core.split import logits_of


class Prompted(nn.Module):
    """A transformer block, or several in a row, that sees prompt tokens (L, D) behind the first token."""

    def __init__(self, block: nn.Module, prompt: Tensor) -> None:
        super().__init__()
        self.block, self.prompt = block, nn.Parameter(prompt)

    def forward(self, tokens: Tensor, *rest: Any, **named: Any) -> Any:
        return self.block(lengthened(tokens, self.prompt), *rest, **named)


def lengthened(tokens: Tensor, prompt: Tensor) -> Tensor:
    """Tokens (B, N, D) with a prompt (L, D) behind the first."""
    return torch.cat([tokens[:, :1], prompt.to(tokens.dtype).expand(len(tokens), -1, -1), tokens[:, 1:]], 1)


@torch.no_grad()
def insert_prompt(body: nn.Module, probe: Tensor, count: int, rng: Rng) -> None:
    """Let a transformer (in place) see `count` trainable tokens from its first block on.

    No architecture is named: the first block is the first module that takes tokens (B, N, D), gives as many, accepts
    more, and mixes them. What stands before it, such as position tables, does not touch the prompt.
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() == 3 and len(inputs[0]) == len(probe):
                seen.setdefault(name, inputs[0])

        return note

    hooks = [m.register_forward_pre_hook(watch(name)) for name, m in body.named_modules() if name]
    try:
        expected = logits_of(body(probe)).shape
    finally:
        for hook in hooks:
            hook.remove()
    for name, tokens in seen.items():
        block, width = body.get_submodule(name), tokens.shape[2]
        if not _mixes(block, tokens, rng.normal(2, count, width)):
            continue
        patch = probe[0].numel() / max(1, tokens.shape[1] - 1)  # values per patch: 3 P^2, one token being the class's
        bound = math.sqrt(6 / (patch + width))
        parent, _, attribute = name.rpartition(".")
        setattr(
            body.get_submodule(parent), attribute, Prompted(block, rng.uniform(count, width, low=-bound, high=bound))
        )
        try:
            if logits_of(body(probe)).shape == expected:
                return
        except (RuntimeError, ValueError, TypeError, IndexError):
            pass
        setattr(body.get_submodule(parent), attribute, block)
    raise ModelError(
        "the model has no transformer block that takes additional tokens (B, N, D), so there is no place for a prompt; "
        "use prompt='norm', which learns the norm layers' weights instead"
    )


def _mixes(block: nn.Module, tokens: Tensor, prompts: Tensor) -> bool:
    """Whether a module takes tokens with a prompt before them, gives as many, and lets the first see the prompt."""
    longer = [lengthened(tokens, prompt) for prompt in prompts]
    try:
        one, other = (logits_of(block(sequence)) for sequence in longer)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return one.shape == longer[0].shape and not torch.allclose(one[:, 0], other[:, 0], rtol=1e-5, atol=1e-6)
