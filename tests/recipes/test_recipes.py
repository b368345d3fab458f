"""Every recipe is a valid whole, travels as JSON, and can be changed field by field."""

from __future__ import annotations

import json

import pytest
import torch

from elastic_dgc.errors import UsageError
from elastic_dgc.models import registry
from elastic_dgc.recipes.recipe import Recipe
from elastic_dgc.recipes.registry import RECIPES, recipe
from elastic_dgc.tasks.image import ImageClassification


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_travels_as_json(name: str) -> None:
    made = recipe(name)
    assert Recipe(**json.loads(made.model_dump_json())) == made


@pytest.mark.parametrize("name", RECIPES)
def test_model_and_schedule_fit_together(name: str) -> None:
    made = recipe(name)
    task, run = made.task, made.run
    assert run.exchange == "dgc"
    assert run.optimizer is not None
    assert run.optimizer.momentum_correction
    with torch.device("meta"):
        model = registry.build(task.model, task.classes or 10, task.image_channels, task.image_size)
    registry.check_size(model, task.model, task.image_channels, task.image_size or 8, task.image_size or 8)
    steps = 100
    densities = [run.compression.density_at(epoch * steps, steps) for epoch in range(run.epochs)]
    assert densities[:5] == [0.25, 0.0625, 0.015625, 0.004, 0.001]
    assert set(densities[4:]) == {0.001}
    factors = [run.schedule.factor(step, steps, run.epochs) for step in range(run.epochs * steps)]
    assert max(factors) == 1.0
    assert factors[-1] < 0.002


def test_imagenet_is_the_usual_step_schedule() -> None:
    run = recipe("imagenet-resnet50").run
    assert (run.virtual_workers, run.micro_batch, run.epochs) == (8, 32, 90)
    factors = [run.schedule.factor(epoch, 1, run.epochs) for epoch in (0, 29, 30, 59, 60, 79, 80, 89)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_digits_needs_nothing_from_outside() -> None:
    task = ImageClassification(recipe("digits").task)
    assert task.classes == 10
    assert sum(p.numel() for p in task.model().parameters()) > 50_000


@pytest.mark.parametrize("name", ["cifar10-resnet20", "imagenet-resnet50"])
def test_other_recipes_do_not_train_on_the_digits_unasked(name: str) -> None:
    with pytest.raises(UsageError, match="data must be given"):
        ImageClassification(recipe(name).task).train_data()


def test_fields_are_replaced_and_checked() -> None:
    made = recipe("digits")
    changed = made.with_values(run=made.run.with_values(epochs=3))
    assert (changed.run.epochs, changed.run.batch, made.run.epochs) == (3, made.run.batch, 15)
    with pytest.raises(UsageError, match="batch = 65"):
        made.run.with_values(batch=65)
    with pytest.raises(UsageError, match="no field 'tusk', did you mean 'task'"):
        Recipe(tusk=made.task)


def test_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'cifar10-resnet20'"):
        recipe("cifar-resnet20")
