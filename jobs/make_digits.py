"""Write the handwritten digits that the package ships, from scikit-learn, as Parquet with PNG images.

Needs scikit-learn (not a dependency of the package). The output depends on the seed alone; a pixel value v of 0..16
is stored as v * 255 // 16 and comes back as round(p * 16 / 255).
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits

from elastic_dgc.seeds import permutation

SEED = 0
TEST_SHARE = 0.2
ROWS_PER_GROUP = 64
ATTRIBUTION = """# Handwritten digits

1,797 gray images of 8x8 pixels of the digits 0 to 9, by 13 writers. They are the test part of

> E. Alpaydin and C. Kaynak: *Optical Recognition of Handwritten Digits*. UCI Machine Learning Repository, 1998.
> https://doi.org/10.24432/C50P49

licensed under the Creative Commons Attribution 4.0 International licence (CC BY 4.0,
https://creativecommons.org/licenses/by/4.0/), as scikit-learn ships it (`sklearn.datasets.load_digits`).

Changes: pixel values 0..16 are scaled to 0..255 and stored as PNG; the images are shuffled and split into a training
and a test part, stratified by digit, by `jobs/make_digits.py`.
"""


def png(pixels: np.ndarray) -> bytes:
    """An 8x8 image with values 0..16 as an 8-bit gray PNG."""
    out = io.BytesIO()
    Image.fromarray((pixels.astype(np.int64) * 255 // 16).astype(np.uint8)).save(out, format="PNG", optimize=True)
    return out.getvalue()


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Train and test indices, shuffled, each digit with the same share in both."""
    test = np.concatenate(
        [
            members[permutation(len(members), SEED, digit)][: round(TEST_SHARE * len(members))]
            for digit in range(10)
            for members in [np.flatnonzero(labels == digit)]
        ]
    )
    train = np.setdiff1d(np.arange(len(labels)), test)
    return train[permutation(len(train), SEED, 10)], test[permutation(len(test), SEED, 11)]


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path), default=Path("elastic_dgc/data/digits"))
def main(folder: Path) -> None:
    digits = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train", "test"), split(digits.target), strict=True):
        table = pa.table(
            {
                "image": pa.array([png(digits.images[row]) for row in rows], pa.binary()),
                "label": pa.array(digits.target[rows], pa.int64()),
            }
        )
        path = folder / f"{name}-00000.parquet"
        pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd", use_dictionary=False)
        click.echo(f"{path}: {len(rows)} images, {path.stat().st_size} bytes")
    (folder / "classes.json").write_text(json.dumps([str(digit) for digit in range(10)]) + "\n")
    (folder / "ATTRIBUTION.md").write_text(ATTRIBUTION)


if __name__ == "__main__":
    main()
