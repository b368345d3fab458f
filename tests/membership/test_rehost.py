"""Who hosts what: balanced, within capacity, and with as few moves as that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.membership.roster import View, Worker, rehost


@st.composite
def crews(draw: st.DrawFn, roomy: bool) -> tuple[int, list[Worker], dict[int, str], frozenset[str]]:
    virtual_workers = draw(st.integers(1, 9))
    room = st.just(99) if roomy else st.integers(0, 5)
    workers = [Worker(f"w{i}", "n", draw(room)) for i in range(draw(st.integers(1, 5)))]
    uids = st.sampled_from([*(one.uid for one in workers), "gone", ""])
    before = {k: uid for k in range(virtual_workers) if (uid := draw(uids))}
    leaving = draw(st.sets(st.sampled_from([one.uid for one in workers]), max_size=len(workers) - 1))
    return virtual_workers, workers, before, frozenset(leaving)


@given(crews(roomy=True))
def test_shares_are_even_and_moves_are_few(crew: tuple[int, list[Worker], dict[int, str], frozenset[str]]) -> None:
    virtual_workers, workers, before, leaving = crew
    hosts = rehost(virtual_workers, workers, before, leaving)
    assert hosts is not None
    assert hosts == rehost(virtual_workers, workers, dict(reversed(before.items())), leaving)
    able = [rank for rank, one in enumerate(workers) if one.uid not in leaving]
    least, larger = divmod(virtual_workers, len(able))
    loads = [hosts.count(rank) for rank in able]
    assert sorted(loads) == [least] * (len(able) - larger) + [least + 1] * larger
    held = [sum(uid == workers[rank].uid for uid in before.values()) for rank in able]
    most_kept = sum(min(one, least) for one in held) + min(larger, sum(one > least for one in held))
    kept = sum(workers[host].uid == before.get(k) for k, host in enumerate(hosts))
    assert kept == most_kept


@given(crews(roomy=False))
def test_capacity_is_kept_and_nobody_with_room_has_far_less(
    crew: tuple[int, list[Worker], dict[int, str], frozenset[str]],
) -> None:
    virtual_workers, workers, before, leaving = crew
    hosts = rehost(virtual_workers, workers, before, leaving)
    able = [rank for rank, one in enumerate(workers) if one.uid not in leaving]
    assert (hosts is None) == (sum(workers[rank].capacity for rank in able) < virtual_workers)
    if hosts is not None:
        loads = {rank: hosts.count(rank) for rank in able}
        assert sum(loads.values()) == virtual_workers
        assert all(load <= workers[rank].capacity for rank, load in loads.items())
        with_room = [load for rank, load in loads.items() if load < workers[rank].capacity]
        assert all(load >= max(loads.values()) - 1 for load in with_room)


def test_a_buddy_is_on_another_node() -> None:
    view = View(1, (Worker("a1", "a"), Worker("a2", "a"), Worker("c1", "c")), (0, 1, 2), 0)
    assert [view.buddy(k) for k in range(3)] == ["c", "c", "a"]
    assert View(1, (Worker("a1", "a"), Worker("a2", "a")), (0, 1), 0).buddy(0) is None


@pytest.mark.parametrize(("uids", "hosts"), [(("a", "b"), (0, 2)), (("a", "a"), (0, 1)), (("a", "b"), (-1, 0))])
def test_a_view_that_makes_no_sense_is_refused(uids: tuple[str, ...], hosts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="view 3"):
        View(3, tuple(Worker(uid, "n") for uid in uids), hosts, 0)
