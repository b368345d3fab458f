"""How fast images are read and decoded, against a bare loop over the same Parquet files with Pillow.

All run in one thread, interleaved, over the same number of images; medians. Ours is what training does: seeded order,
row-group cache, decode, one tensor per batch; once without and once with random crop and flip. With `--image-size`
all three also resize, the bare loop the whole image.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from elastic_dgc.data.augment import Augment
from elastic_dgc.data.images import ImageSource
from elastic_dgc.data.order import Order
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.errors import ElasticDGCError


def bare(folder: str, images: int, size: int | None) -> float:
    """Images per second of a loop that reads row groups and decodes every image to an array."""
    done, start = 0, time.perf_counter()
    for path in sorted(Path(folder).glob("train-*.parquet")):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["image", "label"], use_threads=False)
            for encoded in table["image"].to_pylist()[: images - done]:
                image = Image.open(io.BytesIO(encoded))
                if size is not None:
                    image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
                np.asarray(image)
                done += 1
            if done == images:
                return done / (time.perf_counter() - start)
    return done / (time.perf_counter() - start)


def ours(folder: str, images: int, batch: int, augment: Augment) -> float:
    """Images per second of the image source, read in training order by one virtual worker, from a cold cache."""
    start = time.perf_counter()
    source = ImageSource(ParquetShards(folder, "train"), augment=augment)
    order = Order(source.group_sizes, 1, batch, seed=0)
    done = attempt = 0
    while done < images:
        _, labels = source.load(order.rows(attempt, 0), order.epoch_of(attempt))
        done += len(labels)
        attempt += 1
    return done / (time.perf_counter() - start)


@click.command(help=__doc__)
@click.argument("folder")
@click.option("--images", default=2000, show_default=True, help="Images per round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--batch", default=128, show_default=True)
@click.option("--image-size", type=int, help="Resize to this; needed where sizes differ.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(folder: str, images: int, rounds: int, batch: int, image_size: int | None, as_json: bool) -> None:
    plain, augmented = Augment(size=image_size), Augment(crop="pad", pad=4, flip=True)
    if image_size is not None:
        augmented = Augment(crop="resized", size=image_size, flip=True)
    try:
        images = min(images, len(ParquetShards(folder, "train")))
        speeds = [
            (
                bare(folder, images, image_size),
                ours(folder, images, batch, plain),
                ours(folder, images, batch, augmented),
            )
            for _ in range(rounds)
        ]
    except ElasticDGCError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    median = statistics.median
    result = {
        "images": images,
        "rounds": rounds,
        "bare_images_per_s": round(median(b for b, _, _ in speeds), 1),
        "ours_images_per_s": round(median(o for _, o, _ in speeds), 1),
        "augmented_images_per_s": round(median(a for _, _, a in speeds), 1),
        "ratio": round(median(o / b for b, o, _ in speeds), 3),
        "augmented_ratio": round(median(a / b for b, _, a in speeds), 3),
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(
            f"images/s: bare {result['bare_images_per_s']}, "
            f"ours {result['ours_images_per_s']} (ratio {result['ratio']}), "
            f"with augmentation {result['augmented_images_per_s']} (ratio {result['augmented_ratio']}); "
            f"medians of {rounds} rounds of {images} images"
        )


if __name__ == "__main__":
    main()
