"""What is said of attempts that failed, in a length that people read."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_dgc.errors import ElasticDGCError, error_named

ROWS_SHOWN = 8
SANE_LR = 0.1  # nothing above it is worth trying where a run has diverged
ABSURD = 1e6  # for a parameter
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
    return f"gradients of virtual worker {who} overflow at loss scale {before:.15g}, which is {after:.15g} from now on"


def skips_in_a_row(count: int, since_start: int, at: str = "") -> str:
    """How many attempts in a row were skipped, `since_start` of them at most by this group of workers. The count is
    shared state: a restart is no way around the limit, or a run could skip for ever."""
    earlier = count - since_start
    if earlier <= 0:
        return f"{_attempts(count)} in a row were skipped{at}"
    return (
        f"{_attempts(count)} in a row were skipped{at}, {earlier} of them before the checkpoint that the workers "
        f"went on from"
    )


def going_on_skipping(count: int, most: int) -> str:
    """What is said where the checkpoint stands in the middle of skips in a row."""
    left = max(1, most - count)
    return (
        f"the last {_attempts(count)} before this checkpoint were skipped, which counts: {left} more in a row "
        f"{'ends' if left == 1 else 'end'} the run (--max-skips is {most})"
    )


def _attempts(count: int) -> str:
    return f"{count} attempt{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class State:
    """Of a run that diverged: the learning rate as the user gave it, the loss scale, whether a smaller one may help
    (a gradient overflowed though its loss was finite), commits so far, the largest parameter."""

    lr: float
    loss_scale: float
    overflowed: bool
    applied: int
    largest: float


def mend(state: State, samples_named: bool, verified: str | None) -> str:
    """What can be done about a run that diverged, likeliest first, and what is left of it. `verified`: the last
    verified checkpoint, as in 'attempt 60 in /runs/...'."""
    tries = []
    if state.overflowed and state.loss_scale > 1:
        tries.append(f"try a loss scale below {state.loss_scale:.15g}")
    if samples_named:
        tries.append("look at these samples")
    if state.applied:  # before the first update it has no part in anything
        tries.append(f"try a lower learning rate, such as {min(state.lr / 10, SANE_LR):g} instead of {state.lr:g}")
    if not tries:
        tries.append("look at the data and at the model as it is made")
    left = "the run has no checkpoint yet"
    if verified is not None:
        left = f"the last verified checkpoint, of {verified}, is untouched"
        if state.largest > ABSURD:
            left += f", but parameters reach {state.largest:.1g} there too: begin anew, under another --name"
    return f"{', or '.join(tries)}; {left}"


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
