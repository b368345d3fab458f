"""What goes wrong in a simulated run, and where: never by chance of timing, always at a named point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS: Mapping[str, str] = {
    "crash": "the training process ends",
    "node": "its node is gone, with keeper and all, for `lasts_s`",
    "freeze": "it stands still for `lasts_s`, then goes on",
    "stuck": "as freeze, and the coordinator cannot end it: only its node's keeper can",
    "hang": "its training thread stands still for ever, while it goes on beating",
    "lose": "what it sends to `other` at this point is lost, and nobody is told",
    "drop": "its connection to `other` breaks, what is on its way there is lost, and it can be made again",
    "one-way": "nothing from its node reaches the node of `other`, for `lasts_s`",
    "partition": "its node reaches no other one and not the head, for `lasts_s`",
    "head": "its node and the head do not reach each other, for `lasts_s`",
    "keeper": "its node's keeper ends, and another one is started",
    "damage": "a bit flips in the newest piece (`reached`: in all of them) of the rolling copies at its node's keeper",
    "spoil": "the owned state of virtual worker `reached` cannot be read from any durable checkpoint so far",
    "coordinator": "the coordinator ends, and comes back",
    "away": "the coordinator stands still for `lasts_s`",
    "all": "all training processes end",
    "all and coordinator": "all training processes and the coordinator end",
    "every node": "all nodes are gone, for `lasts_s`",
    "join": "one more worker is started, on the node of `other`",
    "leave": "it is told to leave: a drain notice",
    "poison": "whoever is in the forward pass of virtual worker `reached` ends, again and again",
}
POINTS: Mapping[str, str] = {
    "forward": "before a virtual worker's forward",
    "vote": "rows are being sent: `reached` frames still are",
    "exchange": "messages, or slices of a whole step, are being sent",
    "sum": "a whole step's sums are being sent: between reduce and gather",
    "apply": "everything is here and in the log, nothing is written",
    "flip": "the weights are written, one virtual worker's copies are flipped",
    "commit": "own apply is done",
    "copy": "a chunk is on its way to the buddy",
    "evaluation": "forward's buffers are being sent",
    "digest": "before digests are compared",
    "checkpoint": "before parts are written",
    "manifest": "all parts are written, the manifest is not",
    "report": "in a change: before the report",
    "flush": "in a change: what others lack is being sent",
    "acknowledge": "in a change: all is here, nothing is said",
    "install": "in a change: the view is taken over",
    "rehost": "before an orphan is fetched",
    "replay": "its copy is here",
    "action": "before action `reached` of the coordinator, counted from the fault before",
}
SENT = frozenset({"vote", "exchange", "sum", "flush", "copy", "evaluation"})
CHANGE = ("report", "flush", "acknowledge", "install", "rehost", "replay")
ANYBODY = -1


@dataclass(frozen=True)
class Fault:
    """`kind` happens when `worker` comes to `point` of `attempt`; it strikes `worker`, or `strikes` where given.

    Workers are numbered in the order in which their processes were started; `ANYBODY` is whoever comes first.
    `attempt` None: any. `after`: not before so many faults have happened.
    """

    kind: str
    point: str
    worker: int = 1
    attempt: int | None = None
    reached: int = 0
    strikes: int | None = None
    other: int = 0
    lasts_s: float = 30.0
    after: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.point not in POINTS:
            raise ValueError(f"fault {self.kind!r} at {self.point!r}: known are {list(KINDS)} at {list(POINTS)}")

    def __str__(self) -> str:
        whom = "anybody" if self.worker == ANYBODY else f"worker {self.worker}"
        struck = f" of worker {self.strikes}" if self.strikes is not None else ""
        return f"{self.kind}{struck} when {whom} is at {self.point}, attempt {self.attempt}"
