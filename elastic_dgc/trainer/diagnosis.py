"""What is said of attempts that failed, in a length that people read."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Sequence

from elastic_dgc.errors import ElasticDGCError, error_named

ROWS_SHOWN = 8
REASON_CHARS = 100

_STDLIB = sysconfig.get_paths()["stdlib"]
_FAILED = re.compile(
    r"(?P<name>\w+): (?P<said>.*) \((?P<where>virtual worker -?\d+, attempt -?\d+)"
    r"(?P<place>, at (?P<file>[^;]*?):\d+ in \S+?)?(?P<notes>; .*)?\)",
    re.DOTALL,
)


def skipped(
    reasons: Sequence[str], bad: Sequence[int], virtual_workers: int, rows_of: Callable[[int], list[int]]
) -> str:
    """Why an attempt was skipped: one reason, all virtual workers that it holds for, and samples of the first of them.

    `reasons` are those of `bad`, in order ('virtual worker 2: loss nan'); where there is none bad, the update itself
    was not finite. `rows_of(k)` gives the rows that virtual worker k used.
    """
    if not bad:
        return _cut("; ".join(reasons))
    first = reasons[0].removeprefix(f"virtual worker {bad[0]}: ")
    if len(bad) == 1:
        who = f"virtual worker {bad[0]}: {_cut(first)}"
    else:
        some = f"all {virtual_workers}" if len(bad) == virtual_workers else f"{len(bad)} of {virtual_workers}"
        who = f"{some} virtual workers, the first of them, {bad[0]}: {_cut(first)}"
    rows = rows_of(bad[0])
    more = f" and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
    return f"{who}; samples of virtual worker {bad[0]}: rows {', '.join(map(str, rows[:ROWS_SHOWN]))}{more}"


def scale_moved(before: float, after: float, bad: Sequence[int]) -> str:
    """What is said of an attempt that only moved the loss scale: no fault of its samples."""
    who = ", ".join(map(str, bad[:ROWS_SHOWN])) + (" ..." if len(bad) > ROWS_SHOWN else "")
    return f"gradients of virtual worker {who} overflow at loss scale {before:g}, which is {after:g} from now on"


def mend(lr: float, loss_scale: float, samples_named: bool, verified: str | None) -> str:
    """What can be done about a run with this learning rate (as the user gave it) that diverged at this loss scale, and
    what is left of it.
    `verified`: the last verified checkpoint, as in 'attempt 60 in /runs/...'."""
    look = "look at these samples, or try" if samples_named else "try"
    scale = f" or a loss scale below {loss_scale:g}" if loss_scale > 1 else ""
    left = "the run has no checkpoint yet"
    if verified is not None:
        left = f"the last verified checkpoint, of {verified}, is untouched"
    return f"{look} a lower learning rate, such as {lr / 10:g} instead of {lr:g}{scale}; {left}"


def failed(text: str) -> str:
    """The text of a `TaskFailed` (see `step.compute.describe`) as a user needs it: an error of this package says what
    is wrong without its class, its place in the code and its notes; a place is one in the user's code, not in Python's
    thread pool."""
    found = _FAILED.fullmatch(text)
    if found is None:
        return text
    if _is_ours(found["name"]):
        return f"{found['said']} ({found['where']})"
    place = "" if (found["file"] or "").startswith(_STDLIB) else found["place"] or ""
    return f"{found['name']}: {found['said']} ({found['where']}{place}{found['notes'] or ''})"


def _is_ours(name: str) -> bool:
    return error_named(name) is not ElasticDGCError or name == ElasticDGCError.__name__


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 4]} ..."
