"""`elastic-dgc`: the commands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import click

from elastic_dgc.cli.fields import all_options, overridden
from elastic_dgc.errors import DataError, ElasticDGCError
from elastic_dgc.log import ROOT
from elastic_dgc.recipes.registry import RECIPES, recipe


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-dgc")
def cli() -> None:
    """Elastic data-parallel training with Deep Gradient Compression on Ray."""


@cli.command()
@click.option("--recipe", "recipe_name", default="digits", show_default=True, help=f"one of {', '.join(RECIPES)}")
@click.option("--address", default=None, help="Ray cluster; by default the job's, else Ray is started here")
@click.option("--dashboard/--no-dashboard", default=False, help="start Ray's dashboard too, where Ray is started here")
@click.option("--verbose", is_flag=True, help="show what Ray and the workers print")
@click.option("--quiet", is_flag=True, help="no progress, only warnings and the result")
@all_options
def train(recipe_name: str, address: str | None, dashboard: bool, verbose: bool, quiet: bool, **values: Any) -> None:
    """Train an image classifier. Without arguments: the embedded digits, 4 virtual workers on 2 workers.

    The same command again resumes an unfinished run. Options are the fields of the recipe.
    """
    whole = overridden(recipe(recipe_name), values)
    from elastic_dgc.cli.summary import summary
    from elastic_dgc.tasks.image import ImageClassification
    from elastic_dgc.trainer.elastic import ElasticTrainer

    task = ImageClassification(whole.task, seed=whole.run.seed)
    trainer = ElasticTrainer(task, whole.run, address=address, dashboard=dashboard, verbose=verbose, quiet=quiet)
    result = trainer.fit()
    for line in summary(result, sys.argv):
        click.echo(line)


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def audit(file: str) -> None:
    """Prove from the FILE that `train --audit FILE` wrote that each sample was used exactly once per epoch."""
    from elastic_dgc.data.audit import verify

    with open(file, encoding="utf-8") as lines:
        result = verify(lines)
    click.echo(result.summary())
    if not result.ok:
        raise DataError(f"{file}: the audit does not hold")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by a signal."""
    logging.getLogger(ROOT).addHandler(logging.StreamHandler())
    try:
        cli.main(args=arguments, standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except ElasticDGCError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped at once; the same command goes on from the last checkpoint", err=True)
        sys.exit(130)
