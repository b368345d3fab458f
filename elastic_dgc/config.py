"""The base of every settings class: frozen, strict about names, and with errors a user can act on."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from elastic_dgc.errors import UsageError


class Config(BaseModel):
    """A frozen group of settings, validated when it is made.

    Raises `UsageError`, never pydantic's own error: one line with the field, the value and what would be right;
    an unknown field is answered with the nearest name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_one_line(type(self), error)) from None

    def with_values(self, **values: Any) -> Any:
        """A validated copy in which the named fields are replaced. Raises `UsageError`."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})


def _one_line(cls: type[Config], error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        place = ".".join(str(step) for step in item["loc"]) or cls.__name__
        if item["type"] == "extra_forbidden":
            parts.append(f"{cls.__name__} has no field '{place}'{nearest(place, cls.model_fields)}")
        elif item["type"] == "missing":
            parts.append(f"{cls.__name__}: '{place}' must be given")
        else:
            message = item["msg"].removeprefix("Value error, ").replace("Input should be ", "must be ")
            parts.append(f"{place} = {item['input']!r}: {message}" if item["loc"] else message)
    return "; ".join(parts)


def nearest(name: str, known: Any) -> str:
    """', did you mean ...?' for an unknown name, or the list of what is known when nothing is near."""
    names = sorted(str(one) for one in known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f", did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if len(names) <= 20 else ""
