"""One text for one value: JSON with sorted keys, so that equal values give equal bytes and checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text that depends on the value alone; floats (NaN and infinities too) come back exactly.

    Raises TypeError, naming the place, on what JSON would change unseen: a key that is not a string would come back
    as one. Tuples come back as lists.
    """
    _check(value, "")
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, separators=separators, indent=indent)


def _check(value: Any, place: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{place or 'value'} has the key {key!r}: keys of stored fields must be strings")
            _check(item, f"{place}.{key}" if place else key)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check(item, f"{place}[{i}]")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise TypeError(f"{place or 'value'} is a {type(value).__name__}: stored fields must be plain JSON values")
