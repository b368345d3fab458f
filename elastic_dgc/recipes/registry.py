"""Recipes by name."""

from __future__ import annotations

from collections.abc import Callable

from elastic_dgc.config import nearest
from elastic_dgc.errors import UsageError
from elastic_dgc.recipes.cifar10 import cifar10_resnet20
from elastic_dgc.recipes.digits import digits
from elastic_dgc.recipes.imagenet import imagenet_resnet50
from elastic_dgc.recipes.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10-resnet20": cifar10_resnet20,
    "imagenet-resnet50": imagenet_resnet50,
}


def recipe(name: str) -> Recipe:
    """The recipe of this name. Raises `UsageError` with the nearest name."""
    if name not in RECIPES:
        raise UsageError(f"recipe = {name!r} is not known{nearest(name, RECIPES)}")
    return RECIPES[name]()
