"""A call that all ranks make: whoever fails in it, or does not come, is named on all of them, and soon.

Over the process group's store and not by a collective, which on gloo waits for the group's timeout (half an hour by
default) and leaves a broken group behind; on nccl there is no group yet that could carry it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from elastic_dgc.ddp.settings import disagreement
from elastic_dgc.errors import UsageError, error_named

T = TypeVar("T")
_GOOD = "good"


def together(
    group: dist.ProcessGroup,
    what: str,
    deadline_s: float,
    check: Callable[[], T],
    settings: Callable[[T], str] = lambda _: "",
) -> T:
    """What `check` returns here, once it has returned on all ranks of the group. It must not change anything; nor must
    `settings`, which makes of it the JSON that has to be equal on all ranks.

    `what`: the call in words, for errors; calls of the same name meet in their order. If a check fails, everyone
    raises: its own error where it failed, the same kind of error with the rank elsewhere. Raises `UsageError` where
    ranks have not come after `deadline_s` seconds, and on those that come later; `Disagreement` on all ranks where
    their settings differ. The group itself is as it was.
    """
    # The store of init_process_group: every group's ranks reach it, whatever the group's backend.
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    place = f"elastic_dgc/{group.group_name}/{what}"
    number = store.add(f"{place}/{rank}", 1)
    keys = [f"{place}/{number}/{one}" for one in range(world)]

    def failed(error: Exception) -> Exception:
        line = (str(error).splitlines() or [""])[0]
        store.set(keys[rank], f"{type(error).__name__}: {line}")
        return error

    try:
        value = check()
        own = settings(value)
    except Exception as error:
        failed(error)
        raise
    store.set(keys[rank], f"{_GOOD}: {own}")
    try:
        store.wait(keys, timedelta(seconds=deadline_s))
    except RuntimeError:  # how a store says that the time is over
        missing = [one for one, key in enumerate(keys) if not store.check([key])]
        if missing:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {world}"
            raise failed(
                UsageError(
                    f"{ranks} did not come to {what} within {deadline_s:g} s: it must be called on all ranks alike "
                    f"(DGC's deadline_s is how long it waits)"
                )
            ) from None
    told = []
    for one, key in enumerate(keys):
        name, _, text = store.get(key).decode().partition(": ")
        if name != _GOOD:
            raise error_named(name)(f"rank {one}: {text}")
        told.append(text)
    if len(set(told)) > 1:
        raise disagreement(told)
    return value
