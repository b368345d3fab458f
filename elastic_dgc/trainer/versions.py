"""Which versions a worker runs, and the comparison between workers: other versions are other kernels, other random
numbers, other decoders, so other bits; better one line at the start than weights that drift apart."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from pathlib import Path

import torch

import elastic_dgc
from elastic_dgc.compression.message import VERSION as MESSAGE_FORMAT
from elastic_dgc.errors import Disagreement
from elastic_dgc.trainer.group import Group

DISTRIBUTIONS = ("numpy", "pillow")  # beside torch and our own: what decides a run's bits, the decoder of images too


def versions() -> dict[str, str]:
    """What must be the same on all workers, by name. Of this package also the message format and a digest of the
    sources: a checkout on one node may be older than its number says."""
    python = ".".join(platform.python_version_tuple()[:2])
    others = {name: _installed(name) for name in DISTRIBUTIONS}
    own = f"{_installed('elastic-dgc')} (message format {MESSAGE_FORMAT}, sources {_sources()})"
    return {"elastic_dgc": own, "torch": torch.__version__, **others, "python": python}


def agree_on_versions(group: Group, own: dict[str, str]) -> None:
    """Compare `versions()` between the workers of a group. Entered by all of them, before anything is read or built.
    Raises `Disagreement`, on everyone, that names what differs, where, and the mend."""
    told = group.gather(own, "comparing versions")
    for name in sorted({name for one in told for name in one}):
        by_worker = [one.get(name, "unknown") for one in told]
        if len(set(by_worker)) > 1:
            other = next(rank for rank, value in enumerate(by_worker) if value != by_worker[0])
            raise Disagreement(
                f"workers run different versions: {name} is {by_worker[0]} on worker 0 and {by_worker[other]} on "
                f"worker {other}: install the same {name} on all nodes"
            )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # a checkout on the path; its sources speak for it


def _sources() -> str:
    """8 hex digits of the package's Python files."""
    folder = Path(elastic_dgc.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
