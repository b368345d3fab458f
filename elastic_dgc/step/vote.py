"""From the rows that everyone sees to the one decision that everyone takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from elastic_dgc.errors import Disagreement
from elastic_dgc.step.row import Health, Request, Row


class Verdict(Enum):
    """What an attempt comes to. `ERROR`: somebody's own code raised, the run ends."""

    COMMIT = "commit"
    SKIP = "skip"
    ERROR = "error"


@dataclass(frozen=True)
class Decision:
    """A pure function of the rows: the same on every worker."""

    verdict: Verdict
    samples: int
    count: int  # what the loss counts: samples, or tokens
    overflowed: bool  # somebody's gradient is not finite though his loss is: a smaller loss scale may help
    loss: float  # mean over the step's count
    requests: Request
    reasons: tuple[str, ...]  # one per virtual worker that was not good, in order
    bad: tuple[int, ...]  # those virtual workers
    gradient_norm: float  # joint norms over the virtual workers
    v_norm: float  # NaN where it was not measured


def decide(rows: Sequence[Row]) -> Decision:
    """Rows by virtual worker. Raises `Disagreement` where workers are not at the same attempt, scale or settings."""
    first = rows[0]
    for k, row in enumerate(rows):
        for field in ("attempt", "applied", "loss_scale", "identity"):
            if getattr(row, field) != getattr(first, field):
                there, here = (_shown(getattr(one, field)) for one in (first, row))
                raise Disagreement(
                    f"virtual worker {k} is at {field} {here} where virtual worker 0 is at {there}: "
                    f"the workers do not run the same thing; start them again from a checkpoint"
                )
    bad = tuple(k for k, row in enumerate(rows) if row.health is not Health.GOOD)
    count = sum(row.count for row in rows)
    requests = Request.NONE
    for row in rows:
        requests |= row.requests
    if any(row.health is Health.ERROR for row in rows):
        verdict = Verdict.ERROR
        bad = tuple(k for k in bad if rows[k].health is Health.ERROR)
    elif bad or count == 0:
        verdict = Verdict.SKIP
    else:
        verdict = Verdict.COMMIT
    reasons = tuple(rows[k].text for k in bad) or (("no samples",) if count == 0 else ())
    return Decision(
        verdict=verdict,
        samples=sum(row.samples for row in rows),
        count=count,
        overflowed=any(row.health is Health.OVERFLOW for row in rows),
        loss=sum(row.loss_sum for row in rows) / count if count else 0.0,
        requests=requests,
        reasons=reasons,
        bad=bad,
        gradient_norm=_joint([row.gradient_norm for row in rows]) / first.loss_scale,
        v_norm=_joint([row.v_norm for row in rows]),
    )


def _joint(norms: Sequence[float]) -> float:
    return sum(norm * norm for norm in norms) ** 0.5


def _shown(value: object) -> str:
    return value.hex()[:12] if isinstance(value, bytes) else str(value)
