"""Where virtual workers have sent and how much they hold at most: the same from rows and messages on every worker."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from simulation import SmallNet, batches, cross_entropy, settings

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Steps
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import run_together
from elastic_dgc.precision.finite import joint_norm
from elastic_dgc.protocol.bundle import bundle, unbundle
from elastic_dgc.protocol.ledger import Ledger
from elastic_dgc.seeds import seed_everything
from elastic_dgc.step.attempt import Outcome, attempt
from elastic_dgc.step.log import Entry
from elastic_dgc.step.repair import Surroundings
from elastic_dgc.step.replica import Replica


class Logged(Surroundings):
    """One worker with a log."""

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self.entries: list[Entry] = []

    @property
    def keeps_log(self) -> bool:
        return True

    def enter(self, entry: Entry) -> None:
        self.entries.append(entry)


def trained(attempts: int, density: float) -> tuple[Replica, Ledger, list[torch.Tensor]]:
    """A run of one worker; its ledger; and for each virtual worker where it truly sent."""
    base = settings(3)
    using = replace(base, compression=base.compression.with_values(density=density, warmup=(), warmup_steps=1))
    seed_everything(using.seed)
    around = Logged(Members.of(0, 1, 3))
    replica = Replica(SmallNet(), using, range(3))
    ledger = Ledger(using, replica.layout, 0, known=True)
    sent = [torch.zeros(replica.layout.numel, dtype=torch.bool) for _ in range(3)]
    for number in range(attempts):
        norm = float(joint_norm(replica.weights)) if ledger.wants_norm() else None
        before, applied = [one.v.clone() for one in replica.owned.values()], replica.counters.applied
        steps: Steps[Outcome] = attempt(
            replica,
            around,
            lambda k, n=number: batches(n, k),
            cross_entropy,  # type: ignore[misc]
        )
        outcome = run_together([steps])[0]
        ledger.decided(around.entries[-1], applied, outcome.committed, norm)
        for k, one in replica.owned.items():
            assert one.u is not None
            # with momentum factor masking what was sent has no momentum; what was not has grown by it
            grown = before[k] + one.u
            sent[k] |= (one.v != grown) | ((one.u == 0) & (one.v == 0))
    return replica, ledger, sent


def test_bounds_hold_and_what_was_sent_is_known() -> None:
    replica, ledger, sent = trained(7, 0.05)
    for k, one in replica.owned.items():
        assert float(torch.linalg.vector_norm(one.v.double())) <= ledger.mass.v[k] < math.inf
        assert one.u is not None
        assert float(torch.linalg.vector_norm(one.u.double())) <= ledger.mass.u[k]
        mask = ledger.sent[k].mask()
        assert not bool((sent[k] & ~mask).any()), "something was sent that the ledger does not know of"
        assert 0 < int(mask.sum()) < mask.numel()


def test_a_newcomer_gets_the_same_ledger_and_damage_is_seen() -> None:
    replica, ledger, _ = trained(3, 0.05)
    ledger.saved(3)
    again = Ledger.unpack(replica.settings, replica.layout, ledger.pack())
    assert again.pack() == ledger.pack()
    assert (again.attempt, again.since) == (3, 3)
    assert not bool(again.sent[0].mask().any())
    with pytest.raises(MessageError):
        Ledger.unpack(replica.settings, replica.layout, ledger.pack()[:-3])
    first, *rest = unbundle(ledger.pack())
    with pytest.raises(MessageError, match="damaged"):
        Ledger.unpack(replica.settings, replica.layout, bundle([first[:-1], *rest]))


def test_without_a_past_nothing_is_promised() -> None:
    replica, _, _ = trained(1, 0.05)
    unknown = Ledger(replica.settings, replica.layout, 5, known=False)
    assert all(math.isinf(bound) for bound in unknown.mass.v)
    assert Ledger.unpack(replica.settings, replica.layout, unknown.pack()).mass.v == unknown.mass.v
