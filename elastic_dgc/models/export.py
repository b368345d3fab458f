"""Plain model files: what the trainer writes at the end, and what `init_from` reads.

Written is safetensors, which torch users load without this package (`safetensors.torch.load_file`). Read is
safetensors too, or a state dict saved by `torch.save`, with torch's restricted unpickler only: a file from elsewhere
cannot run code.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import pyarrow.fs
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from elastic_dgc.errors import UsageError

_SHOWN = 6  # names listed in an error before "and n more"


def save_model(state: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of `state` (parameters and buffers by name, any dtype and device), equal bytes for equal
    tensors. Tensors that share memory are written once per name. `state` is not changed."""
    return safetensors.torch.save(
        {name: state[name].detach().to("cpu", copy=True).contiguous() for name in sorted(state)}
    )


def load_state(path: str) -> dict[str, Tensor]:
    """The tensors of a plain model file, by name, on the CPU. `path` is local or a URI that pyarrow knows.

    A dict that holds its tensors one level down, under `state_dict` or `model`, is taken as torch users write it.
    Raises `UsageError` for a file that cannot be read or is neither format.
    """
    return parse_state(read_file(path), path)


def read_file(path: str) -> bytes:
    """The bytes of a local file or a URI. Raises `UsageError` that names it."""
    try:
        if "://" in path:
            filesystem, inner = pyarrow.fs.FileSystem.from_uri(path)
            with filesystem.open_input_stream(inner) as stream:
                return bytes(stream.read())
        with open(path, "rb") as file:
            return file.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"init_from = {path!r} cannot be read: {error}") from error


def digest_of(data: bytes) -> str:
    """SHA-256 of a file's bytes, as hex."""
    return hashlib.sha256(data).hexdigest()


def parse_state(data: bytes, path: str) -> dict[str, Tensor]:
    """`load_state` of bytes already read; `path` is for errors."""
    found: object
    try:
        found = safetensors.torch.load(data)
    except safetensors.SafetensorError:
        found = _torch_file(data, path)
    for key in ("state_dict", "model"):
        inner = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(inner, Mapping):
            found = inner
    if not isinstance(found, Mapping) or not found:
        raise UsageError(f"init_from = {path!r} holds no state dict (name -> tensor), but a {type(found).__name__}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UsageError(f"init_from = {path!r}: entry {name!r} is a {type(value).__name__}, not a tensor")
    return dict(found)


def _torch_file(data: bytes, path: str) -> object:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"init_from = {path!r} is neither safetensors nor a state dict that torch.load reads with "
            f"weights_only=True ({reason}); save model.state_dict()"
        ) from error


def initialise(model: nn.Module, state: Mapping[str, Tensor], path: str, skip: Sequence[str] = ()) -> None:
    """Copies `state` into the parameters and buffers of `model`, strictly by name; `path` is for errors.

    Tensors of the model that match a glob pattern in `skip` keep their fresh values (a new head). Raises `UsageError`
    for missing, unknown, misshapen or non-finite tensors, all before anything in `model` is changed, and for a pattern
    that matches nothing.
    """
    own = model.state_dict()
    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name in own):
            raise UsageError(f"init_skip = {pattern!r} matches no tensor of the model; there are {_some(list(own))}")

    def wanted(name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in skip)

    missing = [name for name in own if wanted(name) and name not in state]
    unknown = [name for name in state if wanted(name) and name not in own]
    if missing or unknown:
        parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has unknown {_some(unknown)}"] * bool(unknown)
        raise UsageError(f"init_from = {path!r} is of another model: it {' and '.join(parts)}")
    given = {name: state[name] for name in own if wanted(name)}
    misshapen = [name for name, value in given.items() if value.shape != own[name].shape]
    if misshapen:
        shapes = [f"{name} {tuple(given[name].shape)} for {tuple(own[name].shape)}" for name in misshapen]
        raise UsageError(
            f"init_from = {path!r} has other shapes than the model: {_some(shapes)}; if this is the head of another "
            f"number of classes, set classes, or start with a new head by init_skip = {misshapen}"
        )
    for name, value in given.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UsageError(f"init_from = {path!r}: {name} has values that are not finite")
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
