"""The names of the models, apart from the models: settings and help need no torch."""

from __future__ import annotations

from elastic_dgc.config import nearest
from elastic_dgc.errors import UsageError

OURS = ("digits", "resnet20", "resnet56", "resnet110")


def is_ours(name: str) -> bool:
    """Whether a network is built here, not by torchvision."""
    return name in OURS


def known() -> list[str]:
    """The names that `registry.build` takes, sorted."""
    import torchvision.models

    return sorted([*OURS, *torchvision.models.list_models(module=torchvision.models)])


def check_name(name: str) -> None:
    """Raises `UsageError` with the nearest name, or with what there is, if `registry.build` does not know `name`."""
    if is_ours(name):
        return
    names = known()
    if name not in names:
        there = f"; known are {', '.join(OURS)} and the classification models of torchvision, such as resnet18"
        raise UsageError(f"model = {name!r} is not known{nearest(name, names) or there}")


def default_channels(name: str) -> int:
    """Image channels a model takes where nothing else is said: 1 for the digits network, 3 for all others."""
    return 1 if name == "digits" else 3


def check_channels(name: str, channels: int) -> None:
    """Raises `UsageError` if the model of this name has no variant for images of so many channels."""
    if not is_ours(name) and channels != 3:
        raise UsageError(f"channels = {channels}: {name} of torchvision takes 3 (gray images are converted)")
