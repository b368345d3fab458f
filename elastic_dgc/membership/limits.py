"""Every wait of the protocol and how long it may last: one table. No wait is without a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


def _limit(default: float, what: str, then: str) -> float:
    return field(default=default, metadata={"what": what, "then": then})


@dataclass(frozen=True)
class Limits:
    """Seconds. Raises ValueError on a limit that is not above zero, or that another one makes pointless."""

    beat_s: float = _limit(1.0, "between two heartbeats of a worker or keeper", "the next one is sent")
    silent_s: float = _limit(10.0, "without a heartbeat of a worker or keeper", "it is taken to be lost")
    confirm_s: float = _limit(3.0, "for the answer of a worker that a peer suspects", "it is taken to be lost")
    reach_s: float = _limit(2.0, "for the peers' answers when a view is changed", "the silent ones are reported")
    report_s: float = _limit(60.0, "for the reports of survivors, who may be computing", "the silent are lost too")
    flush_s: float = _limit(120.0, "for the flush and what moves with it", "those that have not acknowledged are lost")
    boundary_s: float = _limit(20.0, "at an announced boundary for the coordinator", "training goes on in the old view")
    rehost_s: float = _limit(600.0, "for an orphan's state at its new host, replay included", "the new host is lost")
    exact_wait_s: float = _limit(120.0, "for a lost exact copy to come back", "an inexact one is taken, if allowed")
    forward_s: float = _limit(600.0, "for one virtual worker's forward and backward", "the worker is lost: it hangs")
    vote_s: float = _limit(600.0, "in a vote, for all rows", "whoever has not sent is suspected")
    exchange_s: float = _limit(120.0, "for messages or sums", "whoever has not sent is suspected")
    evaluation_s: float = _limit(1800.0, "for an evaluation", "whoever has not sent is suspected")
    digest_s: float = _limit(120.0, "for a comparison of digests", "whoever has not sent is suspected")
    checkpoint_s: float = _limit(600.0, "for a durable checkpoint", "whoever has not sent is suspected")
    coordinator_s: float = _limit(30.0, "without an answer of the coordinator", "a checkpoint at the next boundary")
    alone_s: float = _limit(60.0, "reaching neither coordinator nor the whole view", "the worker ends itself")
    pause_s: float = _limit(1800.0, "with too few workers", "the run stops, its state saved")

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise ValueError(f"{one.name} = {getattr(self, one.name)}: a limit must be above 0 seconds")
        for shorter, longer in (("beat_s", "silent_s"), ("reach_s", "report_s"), ("coordinator_s", "alone_s")):
            if getattr(self, shorter) >= getattr(self, longer):
                raise ValueError(
                    f"{shorter} = {getattr(self, shorter):g} must be below {longer} = {getattr(self, longer):g}"
                )

    def of_phase(self, phase: str) -> float:
        """The limit of a worker's phase. Raises KeyError on one that is not in the table."""
        return {
            "forward": self.forward_s,
            "vote": self.vote_s,
            "exchange": self.exchange_s,
            "evaluation": self.evaluation_s,
            "digest": self.digest_s,
            "checkpoint": self.checkpoint_s,
            "boundary": self.boundary_s,
            "reach": self.reach_s,
            "flush": self.flush_s,
            "rehost": self.rehost_s,
        }[phase]


def table() -> list[Mapping[str, object]]:
    """The limits with default and consequence, for the documentation."""
    return [
        {"limit": one.name, "default": one.default, "waits": one.metadata["what"], "then": one.metadata["then"]}
        for one in fields(Limits)
    ]
