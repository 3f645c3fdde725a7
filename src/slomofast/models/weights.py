"""Weight files in, weight files out: safetensors or .pt, one file or several, whatever wrapper they carry."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from slomofast.core.errors import ModelError

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "params")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def _read_one(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ModelError(f"no weight file {path}{hint}")
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError as error:
            raise ModelError(f"reading {path.name} needs the package safetensors: pip install safetensors") from error
        try:
            return load_file(str(path))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a readable safetensors file ({error})") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # reading damaged bytes may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path} holds no plain tensors that can be read safely ({reason})") from error
    return _unwrap(loaded, path)


def _unwrap(loaded: object, path: Path) -> dict[str, Tensor]:
    """The state dict inside a checkpoint, whatever it is filed under."""
    for _ in range(3):
        if not isinstance(loaded, Mapping):
            break
        if loaded and all(isinstance(v, Tensor) for v in loaded.values()):
            return dict(loaded)
        inner = next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    found = sorted(map(str, loaded)) if isinstance(loaded, Mapping) else type(loaded).__name__
    raise ModelError(f"{path} holds no state dict; found {found}, looked under {', '.join(_WRAPPERS)}")


def read_weights(paths: str | Path | Sequence[str | Path]) -> dict[str, Tensor]:
    """One state dict from one file or from several that hold a part each, on the CPU, half precision widened.

    Raises:
        ModelError: a file that is absent, unreadable, or repeats a key of another part with other values.
    """
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(p) for p in paths]
    if not files:
        raise ModelError("no weight files given")
    merged: dict[str, Tensor] = {}
    for path in files:
        for key, value in _read_one(path).items():
            if key in merged and not torch.equal(merged[key], value):
                raise ModelError(f"{path.name} repeats {key!r} of another part with different values")
            merged[key] = value
    return {k: v.float() if v.is_floating_point() else v for k, v in merged.items()}


def strip_prefixes(state: Mapping[str, Tensor], wanted: Sequence[str]) -> dict[str, Tensor]:
    """Without the prefixes that wrappers add to every key (`module.`, `_orig_mod.`, `model.`).

    A prefix goes only when `wanted`, the network's own keys, do not carry it.
    """
    state = dict(state)
    changed = True
    while changed and state:
        changed = False
        for prefix in _PREFIXES:
            carried = [k for k in state if k.startswith(prefix)]
            # Buffers of a normalisation beside the prefixed keys keep their names.
            if len(carried) >= 0.9 * len(state) and not any(k.startswith(prefix) for k in wanted):
                state = {k.removeprefix(prefix): v for k, v in state.items()}
                changed = True
    return state


def take_normalisation(state: dict[str, Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Remove a checkpoint's own input normalisation (`mu`, `sigma` or `mean`, `std`) and give it back."""
    for mean, std in (("mu", "sigma"), ("mean", "std")):
        if mean in state and std in state:
            return (
                tuple(state.pop(mean).flatten().tolist()),
                tuple(state.pop(std).flatten().tolist()),
            )
    return None


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str = "the weights") -> None:
    """Load a state dict, or say in one message what does not match: missing, unexpected, shapes.

    Raises:
        ModelError: naming keys and shapes. The model is left unchanged then.
    """
    own = model.state_dict()
    given = strip_prefixes(state, list(own))
    # Old checkpoints have no batch counters; nothing depends on them at test time.
    missing = [k for k in own if k not in given and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in given if k not in own]
    shapes = [
        f"{k} has {tuple(given[k].shape)}, the network {tuple(own[k].shape)}"
        for k in own
        if k in given and given[k].shape != own[k].shape
    ]
    if missing or unexpected or shapes:
        raise ModelError(_mismatch(source, type(model).__name__, missing, unexpected, shapes))
    model.load_state_dict({**own, **given})


def _mismatch(
    source: str, network: str, missing: Sequence[str], unexpected: Sequence[str], shapes: Sequence[str]
) -> str:
    def some(items: Sequence[str]) -> str:
        return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")

    parts = []
    if missing:
        parts.append(f"missing: {some(missing)}")
    if unexpected:
        near = [
            f"{k} (nearest: {m[0]})" if (m := difflib.get_close_matches(k, missing, n=1, cutoff=0.6)) else k
            for k in unexpected[:3]
        ]
        parts.append("unexpected: " + some([*near, *unexpected[3:]]))
    if shapes:
        parts.append(f"other shape: {some(shapes)}")
    hint = " Give classes= to match the head." if shapes and not missing and not unexpected else ""
    return f"{source} does not fit {network}: {'; '.join(parts)}.{hint}"


def save_weights(model: nn.Module, path: str | Path, half: bool = False) -> Path:
    """Write a network's state dict as safetensors, atomically; `half` stores fp16 (half the size)."""
    from safetensors.torch import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        k: (v.half() if half and v.is_floating_point() else v).detach().cpu().contiguous()
        for k, v in model.state_dict().items()
    }
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(state, str(part))
        part.chmod(0o644)  # safetensors makes files only the owner can read
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def model_fingerprint(model: nn.Module) -> str:
    """Hash of a network's state dict (names, shapes, types, values): 16 hex digits, device-independent."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
