"""Every field of the settings as an option of the command line, made from the settings' own types."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import click

from elastic_dgc.config import Config
from elastic_dgc.errors import UsageError
from elastic_dgc.recipes.recipe import Recipe
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.trainer.config import RunConfig

ALIASES = {
    "optimizer.lr": "--lr",
    "optimizer.name": "--optimizer",
    "optimizer.momentum": "--momentum",
    "optimizer.nesterov": "--nesterov/--no-nesterov",
    "optimizer.weight_decay": "--weight-decay",
    "compression.preset": "--preset",
    "compression.density": "--density",
    "compression.warmup": "--density-warmup",
    "schedule.kind": "--schedule",
}


def leaves(config: type[Config], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted name, annotation, description) of every field that is no group of fields."""
    hints = typing.get_type_hints(config)
    for name, field in config.model_fields.items():
        group = _group(hints[name])
        if group is not None:
            yield from leaves(group, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hints[name], field.description or ""


def _group(annotation: Any) -> type[Config] | None:
    options = [annotation, *typing.get_args(annotation)]
    return next((one for one in options if isinstance(one, type) and issubclass(one, Config)), None)


def all_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every field of `ImageConfig` and `RunConfig` to a click command. Unset options are absent
    from what `overridden` gets."""
    found = [*leaves(ImageConfig), *leaves(RunConfig)]
    for name, annotation, description in reversed(found):
        dashed = "--" + name.replace("_", "-")
        types = {annotation, *typing.get_args(annotation)}
        if bool in types:
            head, _, tail = dashed[2:].rpartition(".")
            negative = f"--{head}.no-{tail}" if head else f"--no-{tail}"
            declared = [ALIASES.get(name, f"{dashed}/{negative}")]
        else:
            declared = [ALIASES[name], dashed] if name in ALIASES else [dashed]
        option = click.option(
            *declared,
            name.replace(".", "__"),
            default=None,
            help=description,
            show_default=False,
            metavar=None if bool in types else _metavar(annotation),
        )
        command = option(command)
    return command


def _metavar(annotation: Any) -> str:
    """What stands behind an option in the help: N for numbers, the words of a choice, A,B,... for several."""
    kinds = [kind for kind in typing.get_args(annotation) or [annotation] if kind is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, kinds))
    if typing.get_origin(annotation) is tuple:
        return "A,B,..."
    if typing.get_origin(annotation) is dict:
        return "JSON"
    if len(kinds) == 1 and typing.get_origin(kinds[0]) is not None:
        return _metavar(kinds[0])
    return "N" if kinds[0] in (int, float) else "TEXT"


def overridden(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """The recipe with the given options' fields replaced. Raises `UsageError`, also for another optimizer without a
    learning rate of its own: the recipe's is made for the recipe's."""
    parts: dict[str, Config] = {"task": recipe.task, "run": recipe.run}
    kinds = {name: annotation for part in (ImageConfig, RunConfig) for name, annotation, _ in leaves(part)}
    changes: dict[str, dict[str, Any]] = {"task": {}, "run": {}}
    for key, value in values.items():
        if value is not None:
            name = key.replace("__", ".")
            part = "task" if name in ImageConfig.model_fields else "run"
            _nest(changes[part], name.split("."), _parse(name, value, kinds[name]))
    for part, change in changes.items():
        if change:
            parts[part] = _merged(parts[part], change)
    asked, before = values.get("optimizer__name"), recipe.run.optimizer
    if asked and before is not None and asked.lower() != before.name and values.get("optimizer__lr") is None:
        raise UsageError(f"optimizer = '{asked}' needs an --lr: the recipe's {before.lr:g} is for {before.name}")
    return Recipe(**parts)


def _nest(into: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        into = into.setdefault(step, {})
    into[path[-1]] = value


def _merged(config: Config, change: dict[str, Any]) -> Any:
    values = {}
    for name, value in change.items():
        inner = getattr(config, name)
        if isinstance(value, dict) and _group(typing.get_type_hints(type(config))[name]) is not None:
            inner = inner if inner is not None else OptimizerConfig()
            value = _inner(name, inner, value)
        values[name] = value
    try:
        return config.with_values(**values)
    except UsageError as error:
        raise UsageError(_as_typed(str(error), change)) from None


def _as_typed(text: str, change: dict[str, Any]) -> str:
    """An error about a list, or about one of its elements, with the user's words in the place of Python's."""
    for name, value in change.items():
        if isinstance(value, tuple):
            typed = f"{name} = '{','.join(value)}'"
            text = text.replace(f"{name} = {value!r}", typed)
            element = re.match(rf"{name}\.\d+ = ('[^']*'): ([^;,]*)", text)
            if element is not None:
                text = f"{typed}: {element[2]} each, separated by commas, and {element[1]} is not"
    return text


def _inner(name: str, config: Config, change: dict[str, Any]) -> Any:
    try:
        return _merged(config, change)
    except UsageError as error:
        text = str(error)
        named = text.split(" ", 1)[0] in type(config).model_fields  # 'lr = ...': say whose
        raise UsageError(f"{name}.{text}" if named else text) from None


def _parse(name: str, value: Any, annotation: Any) -> Any:
    """Text to what pydantic takes: lists by commas, dicts as JSON, 'none' for what may be absent."""
    if not isinstance(value, str):
        return value
    kinds = {annotation, *typing.get_args(annotation)}
    if value.lower() == "none" and type(None) in kinds:
        return None
    words = [word for kind in kinds if typing.get_origin(kind) is typing.Literal for word in typing.get_args(kind)]
    for word in words:  # a choice of numbers: pydantic takes no text for them
        if isinstance(word, int) and value == str(word):
            return word
    origins = {typing.get_origin(kind) for kind in kinds}
    if tuple in origins:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if dict in origins:
        try:
            return json.loads(value)
        except ValueError as error:
            raise UsageError(f"{name} = {value!r}: must be JSON, such as '{{\"eps\": 1e-6}}' ({error})") from None
    return value
