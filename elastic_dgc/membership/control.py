"""What coordinator, workers and keepers say to each other beside the training's own frames. Values only.

Everything the coordinator says carries its incarnation, and everything about a change of view its number: what is
older than what one has seen is ignored, so each of them may arrive late, twice or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_dgc.membership.roster import View, Worker

# --- workers and keepers to the coordinator


@dataclass(frozen=True)
class Hello:
    """A worker is there. `view`: the number of the last view it installed, 0 for a newcomer who wants to join."""

    worker: Worker
    view: int = 0


@dataclass(frozen=True)
class Beat:
    """A heartbeat, with what the training thread is doing. `virtual_worker`: whose forward runs, else -1."""

    uid: str
    view: int
    phase: str = ""
    attempt: int = 0
    virtual_worker: int = -1


@dataclass(frozen=True)
class Suspect:
    """A peer cannot be reached, or has not sent what it must. It changes nothing by itself."""

    uid: str
    view: int
    peer: str
    reason: str


@dataclass(frozen=True)
class Boundary:
    """The boundary that a vote announced has been reached."""

    uid: str
    view: int
    decided: int


@dataclass(frozen=True)
class Leave:
    """A planned leave: a drain notice, SIGTERM, a spot warning."""

    uid: str
    reason: str


@dataclass(frozen=True)
class Report:
    """A survivor's answer to a fence. `decided`: attempts it has decided, so `decided` is also the one that is open.

    `rows`, `messages`: virtual workers whose row and packed message of the open attempt it holds. `reachable`: the
    survivors that answered it just now, itself included. `hosted`: whose owned state it holds at `decided`.
    `stage`: how many of the things to be done at the boundary before the open attempt it has done.
    """

    uid: str
    number: int
    decided: int
    rows: frozenset[int]
    messages: frozenset[int]
    reachable: frozenset[str]
    hosted: frozenset[int]
    stage: int = 0


@dataclass(frozen=True)
class Flushed:
    """This worker is at `closed_at` and holds everything the plan gives it."""

    uid: str
    number: int
    closed_at: int


@dataclass(frozen=True)
class Hosted:
    """An orphan's state is at its new host. `tier`, and what was passed over on the way, by name."""

    uid: str
    view: int
    virtual_worker: int
    tier: int
    passed_over: tuple[str, ...] = ()
    lost_mass: float = 0.0
    replayed: int = 0


@dataclass(frozen=True)
class Stuck:
    """No exact copy of an orphan could be had; `tried` names each with what is wrong with it."""

    uid: str
    view: int
    virtual_worker: int
    tried: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """An owned copy that a keeper holds; it may list several of one virtual worker. `tag`: its attempt count.
    `message`: the attempt whose packed message is there too, -1 for none. `rolling`: a buddy's rolling snapshot, whose
    tag is its newest chunk's."""

    virtual_worker: int
    tag: int
    message: int = -1
    rolling: bool = False


@dataclass(frozen=True)
class Inventory:
    """What a node's keeper holds. `shared`: the attempts (low, high) at which it can give shared state: a snapshot at
    `low` and all entries of the log up to `high`; None without."""

    node: str
    number: int  # of the fence it answers
    held: tuple[Held, ...]
    shared: tuple[int, int] | None


@dataclass(frozen=True)
class Done:
    """The run is over: its last checkpoint is written."""

    uid: str
    view: int


# --- the coordinator to workers and keepers


@dataclass(frozen=True)
class Fence:
    """From here on a sender of a view below `number` is refused. Answer with a `Report` (a keeper: an `Inventory`)."""

    incarnation: int
    number: int
    survivors: tuple[Worker, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class Transfer:
    """One thing that the flush moves. `what`: 'entry' (all that was decided in `attempt`), 'row' or 'message' (of the
    open attempt), 'owned' (state of a virtual worker at `closed_at`, to a new host), 'shared' (state at `closed_at`,
    to a newcomer). `sender` and `to` are uids; a keeper is 'keeper:<node>', storage is 'storage'."""

    what: str
    sender: str
    to: str
    attempt: int
    virtual_worker: int = -1


@dataclass(frozen=True)
class Plan:
    """How everyone gets to `closed_at`. `witness`: per newcomer, another one who has the shared state's digest."""

    incarnation: int
    number: int
    closed_at: int
    transfers: tuple[Transfer, ...]
    witness: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Install:
    """A view that is persisted. Those who are not in it are out: they end."""

    incarnation: int
    view: View


@dataclass(frozen=True)
class Pending:
    """A change is wanted at the next boundary: say so in the next vote."""

    incarnation: int
    view: int


@dataclass(frozen=True)
class BeatSeen:
    incarnation: int


@dataclass(frozen=True)
class Ping:
    """Answer with a `Beat` at once."""

    incarnation: int


@dataclass(frozen=True)
class Poll:
    """A coordinator that came back asks who is there: answer with a `Hello`."""

    incarnation: int


@dataclass(frozen=True)
class Paused:
    incarnation: int
    reason: str


@dataclass(frozen=True)
class AllowInexact:
    """The wait for an exact copy is over: take the next best."""

    incarnation: int
    view: int
    virtual_worker: int


@dataclass(frozen=True)
class Stop:
    """The run ends with this reason; nothing more is to be written."""

    incarnation: int
    reason: str


@dataclass(frozen=True)
class Out:
    """You are in no view (any more): drop all state; you may come back as a newcomer."""

    incarnation: int
    number: int
