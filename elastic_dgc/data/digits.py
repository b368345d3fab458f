"""The handwritten digits that are part of the package: 1,797 images of 8x8 pixels (see digits/ATTRIBUTION.md)."""

from __future__ import annotations

from importlib.resources import files


def digits_path() -> str:
    """The folder with the Parquet shards `train-*` and `test-*` and `classes.json`."""
    return str(files("elastic_dgc.data").joinpath("digits"))
