"""From a job to the objects that run it: data, source network, setting, adapter; and the job's id."""

from __future__ import annotations

import dataclasses
import os
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from slomofast.bench.job import Job, Resolved, canonical, digest, plain
from slomofast.core.adapter import Adapter
from slomofast.core.errors import ConfigError, ModelError, unknown_name
from slomofast.core.registry import describe
from slomofast.core.split import input_device, last_linear
from slomofast.data import check_data, list_data, open_data
from slomofast.data.catalog import DataSet
from slomofast.models import describe_model, load_source, model_fingerprint
from slomofast.models.external import EXTERNAL_PREFIXES
from slomofast.models.load import checked_options
from slomofast.streams import Setting, Stream, make_setting

MODEL_OPTIONS = ("classes", "mean", "std")
SOURCE_GLYPHS = 2000  # training letters that methods with needs_source get to see


def resolve(job: Job) -> Resolved:
    """The job with every option filled in, checked against what the method, setting, data and model accept.

    Opens the data and loads the network once for each distinct choice (the answers are remembered), because the
    id depends on their contents.
    """
    data = data_facts(job)
    chosen = {"preset": data["family"], **job.options}  # a preset asked for stands in for the family's
    config = describe(job.method).adapter.Config.for_(chosen.pop("preset"), **chosen)
    setting = job_setting(job).to_dict()
    model = model_facts(job)
    if model["classes"] < data["logits"]:
        raise ModelError(
            f"model {job.model!r} gives {model['classes']} logits but {data['name']} needs {data['logits']}; "
            "choose weights trained on its classes"
        )
    options = plain(config)
    identity: dict[str, Any] = {
        "method": job.method,
        "options": options,
        "setting": setting,
        "data": data["fingerprint"],
        "model": [model["name"], model["fingerprint"]],
        "seed": job.seed,
        "batch_size": job.batch_size,
        "images_per_domain": job.images_per_domain,
        "severity": job.severity,
        "domains": job.domains,
        "precision": job.precision,
        "metrics": job.metrics,
        "compile": job.compile,
        "channels_last": job.channels_last,
    }
    if job.graphs:
        identity["graphs"] = True  # named only where it is used, so that older ids stay
    fingerprints = {"data": data["fingerprint"], "model": model["fingerprint"], "source": ""}
    if job.source is not None and _may_need_source(job.method):
        identity["source"] = fingerprints["source"] = cast(DataSet, source_data(job)).fingerprint
    return Resolved(job, digest(identity), options, plain(setting), data, model, fingerprints)


def _may_need_source(method: str) -> bool:
    """Whether a method learns from source images, by default or with some options (those decide for themselves)."""
    info = describe(method)
    return info.needs_source or info.adapter.needs_source is not Adapter.needs_source


def job_stream(resolved: Resolved, data: DataSet, **facts: Any) -> Stream:
    """The stream of a job over its opened data; `facts` are what its setting needs measured, and a device."""
    job = resolved.job
    return Stream(
        job_setting(job),
        data,
        batch_size=job.batch_size,
        seed=job.seed,
        images_per_domain=job.images_per_domain,
        severity=job.severity,
        domains=job.domains,
        held_out=resolved.held_out,
        **facts,
    )


def check_options(job: Job) -> None:
    """Refuse names and options that the method, the setting, the data or the network does not have or accept.

    No file is looked at.
    """
    options = dict(job.options)
    preset = options.pop("preset", None)
    describe(job.method).adapter.Config.build(options, preset)
    job_setting(job)
    check_data(job.data, job.data_options)
    if job.source is not None:
        check_data(job.source, {})
    _check_model(job)


def _check_model(job: Job) -> None:
    for name in job.model_options:
        if name not in MODEL_OPTIONS:
            raise unknown_name("option of a network", name, MODEL_OPTIONS)
    checked_options(job.model_options)
    if not job.model.startswith(EXTERNAL_PREFIXES):
        describe_model(job.model)


def job_setting(job: Job) -> Setting:
    """The setting a job names, with its options."""
    return make_setting(job.setting, **job.setting_options)


def job_data(job: Job, device: torch.device | None = None) -> DataSet:
    """The data set a job names; images come out on `device` where the data set can make them there."""
    options = dict(job.data_options)
    if device is not None and device.type != "cpu":
        kinds = {info.name: info.options for info in list_data()}
        if "device" in kinds.get(job.data.partition(":")[0], ()):
            options["device"] = str(device)
    return open_data(job.data, **options)


def source_data(job: Job, device: torch.device | None = None) -> DataSet | None:
    """The data set whose clean images stand for the source; None where only the stream's own could."""
    spec = job.source or ("glyphs" if job.data == "glyphs" else None)
    if spec is None:
        return None
    return job_data(dataclasses.replace(job, data=spec, data_options=source_options(spec)), device)


def source_options(spec: str) -> dict[str, Any]:
    """Options with which a data set stands for the source: of the letters it is the training ones."""
    return {"split": "train", "size": SOURCE_GLYPHS} if spec == "glyphs" else {}


def job_model(job: Job, device: torch.device | None = None) -> nn.Module:
    """The source network a job names, in eval mode on `device`.

    A network without weights starts from the same random numbers every time.
    """
    _check_model(job)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = load_source(job.model, job.weights or None, **job.model_options)
    model = model.to(device or torch.device("cpu"))
    if job.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def untrained(job: Job) -> bool:
    """Whether a job's network starts from random numbers: no weights were named, and none come with it."""
    external = job.model.startswith(EXTERNAL_PREFIXES)
    return not job.weights and not external and describe_model(job.model).weights is None


@torch.no_grad()
def restricted(model: nn.Module, classes: np.ndarray, probe: Tensor) -> nn.Module | None:
    """The network with a head for some of its classes only: it gives the chosen columns of the logits.

    Methods then do not reckon with classes that cannot occur. None where no linear head can be found.
    """
    small = deepcopy(model)
    device = input_device(small)
    try:
        name = last_linear(small, probe.to(device))
    except ModelError:
        return None
    old = cast(nn.Linear, small.get_submodule(name))
    chosen = torch.as_tensor(classes, dtype=torch.int64, device=old.weight.device)
    new = nn.Linear(old.in_features, len(chosen), bias=old.bias is not None).to(old.weight)
    new.weight.copy_(old.weight[chosen])
    if old.bias is not None:
        new.bias.copy_(old.bias[chosen])
    parent, _, attribute = name.rpartition(".")
    setattr(small.get_submodule(parent), attribute, new)
    return small.eval()


def probe_images(data: DataSet, severity: float, count: int = 2) -> Tensor:
    """The first few images of the first domain: float32 in [0, 1], shape (count, 3, H, W)."""
    images = data.load(data.domains[0], severity, np.arange(min(count, data.size)))
    return images.to(torch.float32) / 255


_facts: dict[str, dict[str, Any]] = {}  # answers about data and networks that were looked at already


def data_facts(job: Job) -> dict[str, Any]:
    """What a record says about the data of a job."""
    key = canonical(["data", job.data, job.data_options])
    if key not in _facts:
        data = job_data(job)
        mask = data.class_mask
        _facts[key] = {
            "spec": job.data,
            "options": plain(job.data_options),
            "name": data.name,
            "family": data.family,
            "classes": data.classes,
            "size": data.size,
            "image_size": data.image_size,
            "logits": data.classes if mask is None else int(np.max(mask)) + 1,
            "fingerprint": data.fingerprint,
        }
    return dict(_facts[key])


def model_facts(job: Job) -> dict[str, Any]:
    """What a record says about the network of a job."""
    size = data_facts(job)["image_size"]
    key = canonical(["model", job.model, job.weights, [_stamp(p) for p in job.weights], job.model_options, size])
    if key not in _facts:
        model = job_model(job)
        with torch.no_grad():
            output = model(torch.zeros(1, 3, size, size))
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ModelError(f"model {job.model!r} does not return logits of shape (n, classes)")
        _facts[key] = {
            "name": job.model,
            "weights": [Path(path).name for path in job.weights],
            "options": plain(job.model_options),
            "parameters": sum(p.numel() for p in model.parameters()),
            "classes": logits.shape[1],
            "fingerprint": model_fingerprint(model),
        }
    return dict(_facts[key])


def _stamp(path: str) -> tuple[int, int]:
    """Changes when a file changes."""
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


def pick_device(name: str | None) -> torch.device:
    """The device of that name; None or `auto` takes a GPU where there is one."""
    if name in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{name!r} is no device; try cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for but torch sees no GPU; use --device cpu")
    return device
