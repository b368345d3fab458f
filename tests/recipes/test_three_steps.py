"""Every recipe, and the example of a user's own task, takes three real steps: real data, order, loader, model and
step, on the in-memory exchange instead of Ray."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from simulation import Group
from torch import nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.data.loader import Loader
from elastic_dgc.recipes.registry import RECIPES, recipe
from elastic_dgc.step.attempt import Outcome
from elastic_dgc.tasks.image import ImageClassification
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.feed import Feed

STEPS = 3


def make_images(folder: Path, train: int, size: int) -> str:
    """Parquet shards of random RGB images of ten classes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("test", 4)):
        images = []
        for pixels in rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            images.append(stream.getvalue())
        labels = pa.array([i % 10 for i in range(count)])
        pq.write_table(pa.table({"image": images, "label": labels}), folder / f"{split}-00000.parquet")
    return str(folder)


def take_steps(task: Task, run: RunConfig, workers: int) -> tuple[Group, list[Outcome]]:
    """What the trainer does in the first steps of a run, with all workers in this thread."""
    source = jobs.training_source(task, run)
    order = jobs.make_order(source, run)
    identity = jobs.identity_of(task, run, source, "cpu")
    feed = Feed(
        Loader(source, order, run.micro_batch, range(run.virtual_workers), 0, STEPS - 1, threads=0), torch.device("cpu")
    )

    def model() -> nn.Module:
        jobs.seed_model(run)
        return task.model()

    settings = jobs.step_settings(task, run, order, identity)
    group = Group(workers, settings, model, task.loss, lambda number, k: feed.batches(number, k))
    return group, [group.step() for _ in range(STEPS)]


def check(outcomes: list[Outcome]) -> None:
    assert all(outcome.committed and math.isfinite(outcome.decision.loss) for outcome in outcomes)
    assert all(outcome.upload_bytes > 0 for outcome in outcomes)
    assert not outcomes[-1].plan.whole  # past the first densities of the warm-up the messages are sparse


def test_digits() -> None:
    """As it is, but for a warm-up that is over after two steps."""
    whole = recipe("digits")
    compression = whole.run.compression.with_values(warmup=(0.25, 0.0625), warmup_steps=1)
    run = whole.run.with_values(compression=compression)
    group, outcomes = take_steps(ImageClassification(whole.task, seed=run.seed), run, workers=2)
    check(outcomes)
    assert group.replicas[0].counters.samples == STEPS * run.batch
    assert outcomes[-1].upload_bytes * 20 < run.virtual_workers * 4 * group.replicas[0].layout.numel


def test_cifar10_resnet20_ends_alike_on_one_and_two_workers(tmp_path: Path) -> None:
    """An epoch is one step of two images for each virtual worker: the warm-up goes on with every step."""
    whole = recipe("cifar10-resnet20")
    task = whole.task.with_values(data=make_images(tmp_path, train=16, size=32))
    run = whole.run.with_values(batch=16)
    ends = []
    for workers in (1, 2):
        group, outcomes = take_steps(ImageClassification(task, seed=run.seed), run, workers)
        check(outcomes)
        ends.append((group.state(), [outcome.decision.loss for outcome in outcomes]))
    assert ends[0] == ends[1]


def test_imagenet_resnet50(tmp_path: Path) -> None:
    """Two virtual workers and small images: eight would need 4 GB."""
    whole = recipe("imagenet-resnet50")
    task = whole.task.with_values(data=make_images(tmp_path, train=4, size=48), image_size=32, resize_eval=36)
    run = whole.run.with_values(virtual_workers=2, workers="1:2", batch=4)
    group, outcomes = take_steps(ImageClassification(task, seed=run.seed), run, workers=2)
    check(outcomes)
    assert group.replicas[0].layout.numel == 25_557_032


def test_every_recipe_is_tried_here() -> None:
    assert set(RECIPES) == {"digits", "cifar10-resnet20", "imagenet-resnet50"}


@pytest.fixture(scope="module")
def own_task() -> ModuleType:
    place = Path(__file__).parents[2] / "jobs" / "own_task.py"
    spec = importlib.util.spec_from_file_location("own_task", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_task_trains_alike_on_one_and_two_workers(own_task: ModuleType) -> None:
    run = RunConfig(batch=32, compression=CompressionConfig(density=0.01, warmup=()))
    ends: list[Any] = []
    for workers in (1, 2):
        group, outcomes = take_steps(own_task.Addition(), run, workers)
        check(outcomes)
        ends.append((group.state(), [outcome.decision.loss for outcome in outcomes]))
    assert ends[0] == ends[1]
    losses = ends[0][1]
    assert losses[0] == pytest.approx(math.log(10), abs=0.2)  # a mean over digits
    assert losses[2] < losses[0]


def test_own_tasks_evaluation_counts_sums_that_are_right_in_every_digit(own_task: ModuleType) -> None:
    numbers, digits = map(torch.as_tensor, own_task.Sums(0, 3)[1])
    place = 10 ** torch.arange(own_task.DIGITS + 1)
    assert (numbers.T * place).sum() == (digits * place).sum()

    class Always(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(digits, 10).float().expand(len(batch), -1, -1)

    wrong = digits.clone()
    wrong[0] = (wrong[0] + 1) % 10
    batch = torch.stack([numbers, numbers]), torch.stack([digits, wrong])
    assert own_task.Addition().evaluate(Always(), batch) == {"accuracy": 1.0}
