"""Identities by content: the same weights have the same fingerprint on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(state: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors of a state dict."""
    digest = hashlib.sha256()
    for key in sorted(state):
        value = state[key]
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{key}|{value.dtype}|{tuple(value.shape)}|".encode())
            if flat.numel():
                digest.update(flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            digest.update(f"{key}|{fingerprint(value)}".encode())
        else:
            digest.update(f"{key}|{value!r}".encode())
    return digest.hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    """Identity of a network's weights and buffers."""
    return fingerprint(model.state_dict())
