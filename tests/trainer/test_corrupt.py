"""Corrupt images that are left out are counted as distinct rows: the same number for any workers, through any kill."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from groups import run_group, run_to_end, tiny_job
from PIL import Image

from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.tasks.image import ImageClassification
from elastic_dgc.tasks.image_config import ImageConfig

pytestmark = pytest.mark.processes

CORRUPT = {"train": [3, 17, 18, 40], "test": [5]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, rows in (("train", 62), ("test", 20)):
        images = []
        for row in range(rows):
            stream = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(stream, "PNG")
            images.append(b"no image" if row in CORRUPT[split] else stream.getvalue())
        table = pa.table({"image": pa.array(images, pa.binary()), "label": pa.array([row % 3 for row in range(rows)])})
        pq.write_table(table, folder / f"{split}-00000.parquet", row_group_size=16)
    return str(folder)


def task(data: str, skip: bool) -> ImageClassification:
    return ImageClassification(ImageConfig(data=data, skip_corrupt=skip))


def test_they_are_counted_once_each_however_often_and_by_whomever_they_are_met(tmp_path: Path, data: str) -> None:
    plan = [{"point": "vote", "view": 1, "attempt": 7, "worker": 1}]
    digests = set()
    for name, faults, sizes in (("one", [], [1]), ("killed", plan, [2, 3])):
        job = tiny_job(str(tmp_path / name), faults, task=task(data, skip=True))
        outcome, history = run_to_end(job, sizes)
        assert len(history) == len(sizes)
        assert outcome["corrupt_samples"] == 5
        assert outcome["restarts"] == len(sizes) - 1
        digests.add(outcome["digest"])
        assert not open_storage(job.run_url).exists("probe"), "the proof of a shared storage leaves nothing behind"
    assert len(digests) == 1


def test_without_leave_the_first_one_ends_the_run_in_one_line_that_names_it(tmp_path: Path, data: str) -> None:
    for end in run_group(tiny_job(str(tmp_path), task=task(data, skip=False)), 2):
        assert end[:2] == ("raised", "TaskFailed")
        assert "corrupt image in train-00000.parquet, row " in end[2]
        assert "(--skip-corrupt); elastic-dgc check-data lists all (virtual worker " in end[2]
        assert not end[2].startswith("DataError")
        assert ".py" not in end[2]
