"""Faults on purpose, at a chosen (point, view, attempt, worker): what the fault tests inject, never with sleeps.

The environment variable ELASTIC_DGC_FAULTS holds a JSON list such as
`[{"point": "vote", "view": 1, "attempt": 7, "worker": 1, "action": "kill"}]`; a part that is left out matches
everything. Actions: `kill` (SIGKILL on the own process), `raise` (RuntimeError). Unset, `reach` is one comparison.
"""

from __future__ import annotations

import json
import os
import signal

VARIABLE = "ELASTIC_DGC_FAULTS"
POINTS = (
    "start",  # a worker has joined its group, nothing is loaded
    "forward",  # before the forward pass of a virtual worker
    "vote",  # own rows are sent, the others' not yet read
    "exchange",  # own messages are sent, the others' not yet read
    "apply",  # all messages are here, nothing is written
    "commit",  # written, before the attempt counter is used again
    "evaluate",  # in the middle of an evaluation
    "checkpoint",  # own files of a checkpoint are written, its manifest is not
    "manifest",  # the manifest is about to be written
    "finish",  # training is done, the result is not written
)

_plan: list[dict[str, object]] | None = None


def reach(point: str, *, view: int, attempt: int, worker: int) -> None:
    """Called by the step, the trainer and the keepers where a fault may be injected. Does nothing without a plan."""
    global _plan
    if _plan is None:
        _plan = json.loads(os.environ.get(VARIABLE, "[]"))
    for fault in _plan:
        here = {"point": point, "view": view, "attempt": attempt, "worker": worker}
        if all(fault.get(name, value) == value for name, value in here.items()):
            _do(str(fault.get("action", "kill")), here)


def _do(action: str, here: dict[str, object]) -> None:
    if action == "raise":
        raise RuntimeError(f"injected fault at {here}")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError(f"{VARIABLE} has an unknown action {action!r}; known: kill, raise")
