"""Convert images to the Parquet shards that `--data` takes.

SRC is a folder `split/class/*.jpg|png` with the splits train and test (or val), or the CIFAR-10 or CIFAR-100 python
archive (`cifar-10-python.tar.gz`, or the folder it unpacks to). DST gets `train-*.parquet`, `test-*.parquet` and
`classes.json`, rows in seeded random order. It appears whole or not at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from elastic_dgc.data.prepare import prepare
from elastic_dgc.errors import ElasticDGCError


@click.command(help=__doc__)
@click.argument("src")
@click.argument("dst")
@click.option("--seed", default=0, show_default=True, help="Of the order of the rows.")
@click.option("--rows-per-group", default=500, show_default=True, help="Rows read at a time; fewer for large images.")
@click.option("--rows-per-file", default=10000, show_default=True)
@click.option("--size", type=int, help="Bring the shorter side of larger images down to this.")
@click.option("--skip-corrupt", is_flag=True, help="Leave files out that are no decodable images, and count them.")
@click.option("--force", is_flag=True, help="Replace a data set in DST.")
def main(
    src: str, dst: str, seed: int, rows_per_group: int, rows_per_file: int, size: int | None, skip_corrupt: bool,
    force: bool,
) -> None:  # fmt: skip
    corrupt: list[Path] = []

    def skip(path: Path, reason: str) -> None:
        corrupt.append(path)
        click.echo(f"left out: {path} ({reason})", err=True)

    try:
        rows = prepare(
            src,
            dst,
            seed=seed,
            rows_per_group=rows_per_group,
            rows_per_file=rows_per_file,
            size=size,
            force=force,
            skip_corrupt=skip if skip_corrupt else None,
        )
    except ElasticDGCError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(f"{dst}: " + ", ".join(f"{count} images in {split}" for split, count in rows.items()))
    if corrupt:
        click.echo(f"{len(corrupt)} corrupt {'file' if len(corrupt) == 1 else 'files'} left out")


if __name__ == "__main__":
    main()
