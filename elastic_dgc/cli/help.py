"""The help of `train`: its many options in groups, the common ones first, with the recipe's own values as defaults."""

from __future__ import annotations

from typing import Any

import click

from elastic_dgc.config import Config
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.trainer.config import RunConfig

COMMON = (
    "recipe_name", "data", "model", "epochs", "workers", "virtual_workers", "batch", "optimizer.lr",
    "compression.density", "exchange", "device", "precision", "seed", "name", "storage", "report", "audit",
)  # fmt: skip
GROUPS = ("Common", "Images and model", "Optimizer and schedule", "Compression", "Workers and limits", "Ray and output")


def group_of(name: str) -> str:
    """The group, one of `GROUPS`, of an option by the dotted name of its field."""
    if name in COMMON:
        return "Common"
    if name in ImageConfig.model_fields:
        return "Images and model"
    if name.startswith(("optimizer.", "schedule.", "accumulation")):
        return "Optimizer and schedule"
    if name.startswith(("compression.", "require_compression")):
        return "Compression"
    return "Workers and limits" if name in RunConfig.model_fields else "Ray and output"


class Commands(click.Group):
    """A group whose help shows the whole first sentence of each command, on as many lines as it takes."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            found = sorted(self.commands.items())
            formatter.write_dl([(name, command.get_short_help_str(limit=300)) for name, command in found])


class GroupedCommand(click.Command):
    """A command whose help shows its options by group, with the values they have in the chosen recipe."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        chosen = recipe(ctx.params.get("recipe_name") or "digits")
        groups: dict[str, list[tuple[int, str, str]]] = {title: [] for title in GROUPS}
        for parameter in self.get_params(ctx):
            name = (parameter.name or "").replace("__", ".")
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = _default(chosen.task if name in ImageConfig.model_fields else chosen.run, name)
                place = COMMON.index(name) if name in COMMON else len(COMMON)
                groups[group_of(name)].append((place, record[0], record[1] + default))
        for title, found in groups.items():
            found.sort(key=lambda entry: entry[0])
            with formatter.section(title):
                formatter.write_dl([(declared, text) for _, declared, text in found])


def _default(config: Any, name: str) -> str:
    """' [0.2]' for a field that has a value in this recipe; nothing for options that are no fields."""
    for step in name.split("."):
        if not isinstance(config, Config) or step not in type(config).model_fields:
            return ""
        config = getattr(config, step)
    if config is None or config in ((), {}):
        return ""
    if isinstance(config, tuple):
        return f"  [{','.join(f'{one:g}' if isinstance(one, float) else str(one) for one in config)}]"
    if isinstance(config, bool):
        return f"  [{'yes' if config else 'no'}]"
    return f"  [{config:g}]" if isinstance(config, float) else f"  [{config}]"
