"""`elastic-dgc`: the commands."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from elastic_dgc.cli.bench import bench
from elastic_dgc.cli.fields import all_options, overridden
from elastic_dgc.cli.help import Commands, GroupedCommand
from elastic_dgc.errors import DataError, ElasticDGCError, Stopped
from elastic_dgc.log import ROOT
from elastic_dgc.recipes.registry import RECIPES, recipe


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-dgc")
def cli() -> None:
    """Elastic data-parallel training with Deep Gradient Compression on Ray."""


cli.add_command(bench)


@cli.command(cls=GroupedCommand)
@click.option(
    "--recipe", "recipe_name", default="digits", is_eager=True, metavar="NAME", help=f"{', '.join(RECIPES)}  [digits]"
)
@click.option("--address", default=None, help="Ray cluster; by default the job's, else Ray is started here")
@click.option("--dashboard/--no-dashboard", default=True, help="start Ray's dashboard, where Ray is started here")
@click.option("--verbose", is_flag=True, help="show what Ray and the workers print")
@click.option("--quiet", is_flag=True, help="no progress, only warnings and the result")
@all_options
def train(recipe_name: str, address: str | None, dashboard: bool, verbose: bool, quiet: bool, **values: Any) -> None:
    """Train an image classifier. Without arguments: the embedded digits, 4 virtual workers on 2 workers.

    The same command again resumes an unfinished run. Options are the fields of the recipe; in brackets is what they
    are in it (`--recipe NAME --help` shows another's). Those marked (fixed), and all that say what the model, the
    optimizer and the compression are, decide the result: they cannot be changed when a run is resumed.
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

    with open(file, encoding="utf-8", errors="replace") as lines:
        result = verify(lines)
    click.echo(result.summary())
    if not result.ok:
        raise DataError(f"{file}: the audit does not hold")


@cli.command("check-data")
@click.argument("data")
@click.option("--threads", type=int, default=None, help="that decode  [one for each core]")
def check_data(data: str, threads: int | None) -> None:
    """Decode every image of DATA and list all that are corrupt, before any training.

    DATA is what `train --data` takes, a folder or URI of Parquet shards, or a folder split/class/*.jpg|png that
    prepare_images.py has not packed yet. Labels are checked, too. Ends with exit code 1 where something is wrong.
    """
    from elastic_dgc.data.check import check_data as check
    from elastic_dgc.trainer.words import count

    wrong = 0
    for split in check(data, threads if threads is not None else os.cpu_count() or 1):
        before = wrong
        for line in split.corrupt:
            click.echo(line)
            wrong += 1
        click.echo(f"{split.name}: {count(split.images, 'image')}, {wrong - before or 'none'} of them corrupt")
    if wrong:
        what = "1 image is" if wrong == 1 else f"{wrong} images are"
        raise DataError(f"{data}: {what} corrupt: mend or remove what is listed, or leave it out (--skip-corrupt)")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by a signal.

    An error is one line on stderr that begins with 'error: '.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    handler = logging.StreamHandler()
    logging.getLogger(ROOT).addHandler(handler)
    try:
        sys.exit(cli.main(args=words, prog_name="elastic-dgc", standalone_mode=False) or 0)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        place = f"; see {context.command_path} --help" if context is not None else ""
        click.echo(f"error: {error.format_message().rstrip('.')}{place}", err=True)
        sys.exit(2)
    except Stopped as error:  # as asked for: no error
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except ElasticDGCError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:  # click makes the one the cause of the other
        click.echo(str(error.__cause__ or error) or "stopped at once", err=True)
        sys.exit(130)
    finally:
        logging.getLogger(ROOT).removeHandler(handler)
