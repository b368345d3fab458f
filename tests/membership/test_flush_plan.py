"""After the flush everybody has everything: checked by carrying plans out on sets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.control import Held, Inventory, Plan, Report
from elastic_dgc.membership.flush import flush_plan, holders
from elastic_dgc.membership.roster import View, Worker, rehost


@dataclass
class Case:
    """A view of which some survive, at attempt 6 or one behind it, and the view that follows it."""

    view: View
    reports: list[Report]
    after: list[Worker]
    hosts: tuple[int, ...]
    inventories: list[Inventory] = field(default_factory=list)

    @property
    def virtual_workers(self) -> int:
        return len(self.view.hosts)

    def plan(self) -> Plan:
        return flush_plan(self.reports, self.inventories, self.view, self.after, self.hosts, self.virtual_workers, 8, 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """What can be: messages of an attempt exist only once all its rows did, and whoever hosts has his own."""
    size, virtual_workers = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    workers = tuple(Worker(f"w{rank}", f"n{rank % 3}") for rank in range(size))
    hosts = tuple(draw(st.integers(0, size - 1)) for _ in range(virtual_workers))
    view, everything = View(7, workers, hosts, 5), frozenset(range(virtual_workers))
    alive = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
    some = st.frozensets(st.integers(0, virtual_workers - 1))
    reports = []
    for rank in alive:
        uid = workers[rank].uid
        decided = draw(st.sampled_from([5, 6])) if rank != alive[0] else 6
        lost = draw(st.frozensets(st.sampled_from(sorted(everything)))) if draw(st.booleans()) else frozenset()
        reports.append(Report(uid, 8, decided, draw(some), draw(some), frozenset(), frozenset(view.hosted(uid)) - lost))
    leaving = draw(st.sets(st.sampled_from(alive), max_size=len(alive) - 1))
    after = [workers[rank] for rank in alive if rank not in leaving]
    after += [Worker(f"new{i}", "n0") for i in range(draw(st.integers(0, 2)))]
    before = holders(reports, view, virtual_workers)
    hosts_after = rehost(virtual_workers, after, before)
    assert hosts_after is not None
    return Case(view, draw(st.permutations(reports)), after, hosts_after)


@given(cases())
def test_a_plan_that_was_carried_out_leaves_nobody_wanting(case: Case) -> None:
    plan = case.plan()
    assert plan.closed_at == 6
    have: dict[str, set[tuple[str, int, int]]] = {one.uid: set() for one in case.after}
    for one in case.reports:
        own = have.setdefault(one.uid, set())
        own |= {("state", one.decided, -1)}
        own |= {("owned", 6, k) for k in one.hosted}  # a survivor that is behind finishes them by itself
        own |= {("row", one.decided, k) for k in one.rows} | {("message", one.decided, k) for k in one.messages}
        if one.decided == 6:
            own.add(("entry", 5, -1))
    there_were = {key for own in have.values() for key in own}
    for one in plan.transfers:
        key = ("state" if one.what == "shared" else one.what, one.attempt, one.virtual_worker)
        if one.what == "entry":
            assert (*key,) in have[one.sender]
            have[one.to].add(("state", 6, -1))
        assert one.what == "entry" or key in have[one.sender], one
        assert key not in have[one.to], f"{one} was there already"
        have[one.to].add(key)
    kept = holders(case.reports, case.view, case.virtual_workers)
    for rank, worker in enumerate(case.after):
        own = have[worker.uid]
        assert ("state", 6, -1) in own
        for k in range(case.virtual_workers):
            host = case.hosts[k] == rank
            assert not host or k not in kept or ("owned", 6, k) in own
            # what the old host does not send again by itself is with everyone, if it was with anyone
            stays = kept.get(k) == case.after[case.hosts[k]].uid
            assert stays or all((w, 6, k) in own or (w, 6, k) not in there_were for w in ("row", "message"))
    survivors = {one.uid for one in case.reports}
    hosting = {one.uid for one in case.reports if one.hosted or case.view.hosted(one.uid)}
    for uid, other in plan.witness.items():
        assert uid not in hosting
        assert other in survivors
        assert other not in [one.sender for one in plan.transfers if one.what == "shared"]


def report(uid: str, decided: int, hosted: set[int], messages: set[int] | None = None) -> Report:
    return Report(uid, 8, decided, frozenset(), frozenset(messages or ()), frozenset(), frozenset(hosted))


THREE = View(7, (Worker("a", "x"), Worker("b", "y"), Worker("c", "z")), (0, 1), 5)


def test_more_than_one_apart_is_a_defect_unless_it_is_a_spare() -> None:
    with pytest.raises(ProtocolError, match="worker a has decided 4"):
        flush_plan([report("a", 4, {0}), report("b", 6, {1})], [], THREE, THREE.workers[:2], (0, 1), 2, 8, 1)
    reports = [report("a", 6, {0}), report("b", 6, {1}), report("c", 2, set())]
    plan = flush_plan(reports, [], THREE, THREE.workers, (0, 1), 2, 8, 1)
    assert [(one.what, one.sender, one.to, one.attempt) for one in plan.transfers] == [("shared", "a", "c", 6)]


def test_a_prepared_message_that_only_a_keeper_has_goes_to_everyone() -> None:
    held = Inventory("y", 8, (Held(1, 6, message=6), Held(0, 5, message=5)), None)
    reports = [report("a", 6, {0}), report("c", 6, set())]
    after = (THREE.workers[0], THREE.workers[2])
    plan = flush_plan(reports, [held], THREE, after, (0, 1), 2, 8, 1)
    assert [(one.what, one.sender, one.to, one.virtual_worker) for one in plan.transfers] == [
        ("message", "keeper:y", "a", 1),
        ("message", "keeper:y", "c", 1),
    ]
    reports[0] = report("a", 6, {0}, messages={1})
    plan = flush_plan(reports, [held], THREE, after, (0, 1), 2, 8, 1)
    assert [(one.sender, one.to) for one in plan.transfers if one.what == "message"] == [("a", "c")]


def test_what_a_lost_workers_log_says_was_decided_is_decided() -> None:
    """Host b applied attempt 6 and died; its messages reached nobody, its keeper has the log."""
    held = Inventory("y", 8, (Held(1, 7, message=6),), (4, 7))
    reports = [report("a", 6, {0}), report("c", 6, set())]
    plan = flush_plan(reports, [held], THREE, (THREE.workers[0], THREE.workers[2]), (0, 1), 2, 8, 1)
    assert plan.closed_at == 7
    assert [(one.what, one.sender, one.to, one.attempt) for one in plan.transfers] == [
        ("entry", "keeper:y", "a", 6),
        ("shared", "a", "c", 7),  # which hosts nothing
    ]


def test_state_that_was_handed_over_in_a_change_without_an_end_is_used() -> None:
    """Host b is lost after it gave virtual worker 1 to c."""
    reports = [report("a", 6, {0}), report("c", 6, {1})]
    assert holders(reports, THREE, 2) == {0: "a", 1: "c"}
    after = (THREE.workers[0], THREE.workers[2])
    assert not flush_plan(reports, [], THREE, after, (0, 1), 2, 8, 1).transfers


def test_without_survivors_shared_state_comes_from_the_nearest_snapshot_or_storage() -> None:
    new = (Worker("d", "x"),)
    inventories = [Inventory("x", 8, (), (2, 9)), Inventory("y", 8, (), (5, 9)), Inventory("z", 8, (), (8, 9))]
    for at, sender in ((7, "keeper:y"), (9, "keeper:z"), (12, "storage")):
        plan = flush_plan([], inventories, THREE, new, (0, 0), 2, 8, 1, restart_at=at)
        assert (plan.closed_at, [one.sender for one in plan.transfers]) == (at, [sender])
    assert not flush_plan([], [], None, new, (0, 0), 2, 1, 1, restart_at=0).transfers
