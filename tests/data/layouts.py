"""Pictures and shards the tests write, and what they look like."""

import io
import tarfile

import numpy as np

from slomofast.data.images import encode_jpeg


def picture(seed, side=32):
    """A smooth RGB picture that tells seeds apart after JPEG."""
    rng = np.random.default_rng(seed)
    base = rng.integers(30, 220, 3)
    ramp = np.linspace(-30, 30, side)
    return np.clip(base + ramp[:, None, None] * rng.normal(size=3) + ramp[None, :, None], 0, 255).astype(np.uint8)


def write_image(path, seed, side=32):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_jpeg(picture(seed, side), 95))
    return path


def write_shard(path, keys, label=lambda i: i, side=48, omit=()):
    with tarfile.open(path, "w") as archive:
        for k in keys:
            members = (
                (f"sample_{k}.info", b"++n1++fog++s1++1.0++n2++snow++s2++0.25"),
                (f"sample_{k}.input.jpg", encode_jpeg(picture(k, side), 95)),
                (f"sample_{k}.output.cls", str(label(k)).encode()),
            )
            for name, content in members:
                if name not in omit:
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return path
