"""Replay from a rolling snapshot and the log is bitwise what was lost, and finds where it would not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from simulation import SHARE, Group, SmallNet, batches, cross_entropy, settings, shared_digests
from torch import Tensor, nn

from elastic_dgc.compression import message as messages
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.errors import Disagreement, MessageError, TaskFailed, Unreplayable
from elastic_dgc.exchange.members import Members
from elastic_dgc.keeping.rolling import Fit, RollingCopy, spans
from elastic_dgc.precision.digest import digests
from elastic_dgc.precision.loss_scale import LossScale
from elastic_dgc.step.advance import advance
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.log import Entry
from elastic_dgc.step.repair import Surroundings
from elastic_dgc.step.replay import Chunk, Replayed, replay
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.settings import StepSettings

K, CHUNKS, ATTEMPTS = 3, 4, 14
NAN_AT, OVERFLOW_AT, SHORT_AT, REFUSED_AT = 9, 12, 10, 12


def poisoned(number: int, k: int) -> list[MicroBatch]:
    """The batches of the simulation with a third part, which the loss reads: skips of every kind, and a short step."""
    found = batches(number, k)[: 1 if (number, k) == (SHORT_AT, 1) else 2]
    poison = {(NAN_AT, 2): "nan", (OVERFLOW_AT, 0): "overflow"}.get((number, k), "")
    return [MicroBatch((*one.data, poison if i == 0 else ""), one.count) for i, one in enumerate(found)]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, str]) -> Tensor:
    mean = cross_entropy(model, batch[:2])
    if batch[2] == "nan":
        return mean * float("nan")
    if batch[2] == "overflow":  # a gradient that is not finite, under a loss that is
        return mean + (model.head.weight.sum() * 0).sqrt()
    return mean


class Recording(Surroundings):
    """Keeps the log, as a worker that others may have to be helped by."""

    keeps_log = True

    def __init__(self, members: Members, entries: list[Entry]) -> None:
        super().__init__(members)
        self._entries = entries

    def enter(self, entry: Entry) -> None:
        self._entries.append(entry)


@dataclass
class Record:
    """A run of two workers, its log, and for each tag what shared and owned state were."""

    using: StepSettings
    model: Callable[[], nn.Module] = SmallNet
    loss: Any = loss
    batches: Any = poisoned
    entries: list[Entry] = field(default_factory=list)
    shared: list[Any] = field(default_factory=list)
    owned: list[dict[int, dict[str, str]]] = field(default_factory=list)
    digests: list[dict[str, str]] = field(default_factory=list)
    copies: list[RollingCopy] = field(default_factory=lambda: [RollingCopy(CHUNKS) for _ in range(K)])
    skipped: list[int] = field(default_factory=list)

    def run(self, attempts: int) -> Record:
        group = Group(2, self.using, self.model, self.loss, self.batches)
        group.members[0] = Recording(group.members[0], self.entries)
        group.members[1] = Recording(group.members[1], [])
        self._keep(group)
        for number in range(attempts):
            if not group.step().committed:
                self.skipped.append(number)
            self._keep(group)
        return self

    def _keep(self, group: Group) -> None:
        replica = group.replicas[0]
        tensors, values = replica.export_shared()
        self.shared.append(({name: tensor.clone() for name, tensor in tensors.items()}, dict(values)))
        self.digests.append(shared_digests(replica))
        owned = {k: one for each in group.replicas for k, one in each.owned.items()}
        self.owned.append({k: digests(one.export()[0]) for k, one in owned.items()})
        tag = replica.counters.attempt
        for k, one in owned.items():
            low, high = spans(replica.layout.numel, CHUNKS)[tag % CHUNKS]
            self.copies[k].put_chunk(tag, tag % CHUNKS, None if one.u is None else one.u[low:high], one.v[low:high], k)
            if tag % CHUNKS == 0:
                self.copies[k].put_buffers(tag, one.buffers, k)

    def replica(self, k: int, tag: int, buffers: dict[str, Tensor], garbage: float = 0.0) -> Replica:
        """A fresh one, with what is shared at a tag, and this in u and v."""
        found = Replica(self.model(), self.using, [k])
        tensors, values = self.shared[tag]
        found.load_shared(tensors, values)
        one = found.owned[k]
        for name, value in buffers.items():
            one.buffers[name].copy_(value)
        for vector in (one.u, one.v, one.other_u, one.other_v):
            if vector is not None:
                vector.fill_(garbage)
        return found

    def replay(self, k: int, fit: Fit, garbage: float = 0.0, **changes: Any) -> tuple[Replica, Replayed]:
        until = len(self.entries)
        replica = self.replica(k, fit.start, fit.buffers, garbage)
        given = {"chunks": fit.chunks, "entries": self.entries[fit.start :], "batches": self.batches, **changes}
        return replica, replay(replica, k, given["batches"], self.loss, given["entries"], given["chunks"], until)


def dgc(**fields: Any) -> CompressionConfig:
    return CompressionConfig(**{"density": 0.05, "warmup": (0.3,), "warmup_steps": 3, "min_numel": 20, **fields})


def sgd(**fields: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, **fields})


CASES: dict[str, dict[str, Any]] = {
    "sparse": {"compression": dgc(warmup=())},
    "clipped, bf16": {"compression": dgc(clip=0.3, values="bf16")},
    "nesterov, unmasked": {"optimizer": sgd(nesterov=True, decay_vectors=False), "compression": dgc(masking=False)},
    "int8, no momentum": {"optimizer": sgd(momentum=0.0), "compression": dgc(values="int8", clip=0.5)},
    "int8, all sparse": {"compression": dgc(values="int8", small_density=0.3, density=0.3)},
    "fp16 values, adamw": {
        "optimizer": OptimizerConfig(name="adamw", lr=1e-2, weight_decay=0.01), "compression": dgc(values="fp16"),
    },
    "whole and sparse in turn": {"compression": dgc(warmup=(0.3, 1.0, 0.1, 1.0), warmup_steps=2)},
    "whole": {"exchange": "dense"},
    "a moving loss scale": {"loss_scale": LossScale(2.0**10, growth_every=2), "compression": dgc(clip=0.5)},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_replay_is_the_lost_state_bit_for_bit(case: str) -> None:
    """Through two skips, a short step and each chunk's own tag; from other values than zeros in memory."""
    record = Record(settings(K, max_skips=99, **CASES[case])).run(ATTEMPTS)
    assert record.skipped == [NAN_AT, OVERFLOW_AT]
    sparse = [entry for entry in record.entries if entry.messages is not None]
    for k in range(K):
        newest = ATTEMPTS - (k == 2)  # of the third, the last chunk did not arrive: all is there for an attempt
        fit = record.copies[k].fit(newest)
        assert fit is not None
        assert fit.start == 8
        assert sorted(chunk.tag for chunk in fit.chunks) == list(range(newest - 3, newest + 1))
        replica, found = record.replay(k, fit, garbage=float("nan"))
        assert digests(replica.owned[k].export()[0]) == record.owned[-1][k]
        assert shared_digests(replica) == record.digests[-1]
        assert replica.owned[k].tag == replica.counters.attempt == ATTEMPTS
        assert (found.differences, found.rows_differ) == (0, 0)
        assert (found.compared > 0) == any(entry.attempt >= newest - 3 for entry in sparse)
        assert found.exact
    behind = record.replica(0, 0, {})
    advance(behind, record.entries)
    assert shared_digests(behind) == record.digests[-1]


def test_an_update_that_was_refused_is_refused_again() -> None:
    """The rows say commit, but the weights would not be finite: told in the entry or not, all see the same."""

    def steep(model: nn.Module, batch: tuple[Tensor, Tensor, str]) -> Tensor:
        return cross_entropy(model, batch[:2]) * (1e10 if batch[2] == "steep" else 1e-30)

    def of(number: int, k: int) -> list[MicroBatch]:
        mark = "steep" if (number, k) == (REFUSED_AT, 1) else ""
        return [MicroBatch((*one.data, mark), one.count) for one in batches(number, k)]

    using = settings(K, optimizer=sgd(lr=1e30, weight_decay=0.0))
    record = Record(using, loss=steep, batches=of).run(ATTEMPTS)
    assert record.skipped == [REFUSED_AT]
    told = [replace(one, committed=one.attempt != REFUSED_AT) for one in record.entries]
    bare = [one if one.committed else Entry(one.attempt, one.rows, committed=False) for one in told]
    fit = record.copies[1].fit(ATTEMPTS)
    assert fit is not None
    for entries in (record.entries, told, bare):
        replica, found = record.replay(1, fit, entries=entries[fit.start :])
        assert found.exact
        assert digests(replica.owned[1].export()[0]) == record.owned[-1][1]
        assert shared_digests(replica) == record.digests[-1]
    told[REFUSED_AT] = replace(told[REFUSED_AT], committed=True)
    with pytest.raises(Disagreement, match=f"attempt {REFUSED_AT}: the update makes"):
        advance(record.replica(0, 0, {}), told)


@pytest.fixture(scope="module")
def recorded() -> Record:
    torch.set_num_threads(1)
    return Record(settings(K, max_skips=99, compression=dgc(warmup=()))).run(ATTEMPTS)


def fit_of(record: Record, k: int) -> Fit:
    found = record.copies[k].fit(ATTEMPTS)
    assert found is not None
    return found


def test_a_logged_value_that_is_not_ours_is_counted_and_wins(recorded: Record) -> None:
    """In the last attempt, so that nothing follows from it: v differs there by what the log has more."""
    k, replica = 1, recorded.replica(1, 0, {})
    packed = recorded.entries[-1].messages
    assert packed is not None
    sent = messages.unpack(replica.layout, packed[k])
    dense, at = replica.layout.dense_numel, sent.positions[-1]
    values = sent.values.clone()
    values[-1] += 0.5
    wrong = messages.pack(replica.layout, "fp32", wire.Coded(values), sent.positions[dense:])
    entry = replace(recorded.entries[-1], messages=(packed[0], wrong, packed[2]))
    fit = fit_of(recorded, k)
    whole = recorded.replay(k, fit)[0].owned[k]
    replica, found = recorded.replay(k, fit, entries=[*recorded.entries[fit.start : -1], entry])
    assert (found.differences, found.rows_differ, found.exact) == (1, 0, False)
    expected = whole.v.clone()
    expected[at] -= values[-1] - sent.values[-1]
    assert torch.equal(replica.owned[k].v, expected)
    assert whole.v[at] == 0


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_a_chunk_that_is_not_what_it_was_is_found(kind: str) -> None:
    """A sent value tells, of each chunk that something was sent from since; in int8 by more than half a step."""
    record = Record(settings(K, max_skips=99, compression=dgc(warmup=(), values=kind))).run(ATTEMPTS)
    fit = fit_of(record, 2)
    for i, chunk in enumerate(fit.chunks):
        chunks = [*fit.chunks[:i], replace(chunk, v=chunk.v + 0.1), *fit.chunks[i + 1 :]]
        found = record.replay(2, fit, chunks=chunks)[1]
        assert (found.differences > 0) == (chunk.tag < ATTEMPTS)


def test_other_data_are_found_in_the_rows(recorded: Record) -> None:
    def other(number: int, k: int) -> list[MicroBatch]:
        return poisoned(number + 100 * (number == 8), k)

    found = recorded.replay(0, fit_of(recorded, 0), batches=other)[1]
    assert found.rows_differ == 1
    assert not found.exact


def test_without_entries_between_the_copy_is_all(recorded: Record) -> None:
    """A copy of one moment: everything is loaded, nothing is computed."""
    done = recorded.replay(1, fit_of(recorded, 1))[0].owned[1]
    numel = done.v.numel()
    replica = recorded.replica(1, ATTEMPTS, done.buffers)
    copy = [Chunk(ATTEMPTS, 0, numel, done.u, done.v)]
    found = replay(replica, 1, poisoned, loss, [], copy, ATTEMPTS)
    assert found == Replayed(0, 0, 0)
    assert digests(replica.owned[1].export()[0]) == recorded.owned[-1][1]


def test_what_does_not_fit_is_refused(recorded: Record) -> None:
    fit, entries = fit_of(recorded, 1), recorded.entries
    later = entries[fit.start :]
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "each entry between", {"entries": later[1:]}),
        (ValueError, "each entry between", {"entries": [later[0], *later[2:]]}),
        (ValueError, "the chunks end at", {"chunks": fit.chunks[:-1]}),
        (ValueError, "the next position is 0", {"chunks": fit.chunks[1:]}),
        (ValueError, "has tag 7, not within 8", {"chunks": [replace(fit.chunks[0], tag=7), *fit.chunks[1:]]}),
        (ValueError, "momentum: True", {"chunks": [replace(fit.chunks[0], u=None), *fit.chunks[1:]]}),
        (MessageError, "neither messages nor a sum", {"entries": [Entry(8, later[0].rows), *later[1:]]}),
        (MessageError, "message of virtual worker 2", {
            "entries": [replace(later[0], messages=(*(later[0].messages or ())[:2], b"x")), *later[1:]],
        }),
        (Disagreement, "whole in the log", {
            "entries": [replace(later[0], messages=None, total=b"x"), *later[1:]],
        }),
    ]  # fmt: skip
    for error, text, changes in wrong:
        with pytest.raises(error, match=text):
            recorded.replay(1, fit, **changes)
    with pytest.raises(ValueError, match="does not follow a state of 0"):
        advance(recorded.replica(1, 0, {}), entries[1:])
    stranger = recorded.replica(1, 0, {})
    stranger.settings = replace(stranger.settings, identity=b"x" * 16)
    with pytest.raises(Disagreement, match="not of one history"):
        advance(stranger, entries)


def test_what_cannot_be_computed_again_is_said(recorded: Record) -> None:
    def lost(number: int, k: int) -> list[MicroBatch]:
        raise OSError("disk gone")

    fit = fit_of(recorded, 1)
    with pytest.raises(TaskFailed, match=r"OSError: disk gone \(virtual worker 1, attempt 8"):
        recorded.replay(1, fit, batches=lost)

    def worse(number: int, k: int) -> list[MicroBatch]:
        return [MicroBatch((*one.data[:2], "nan"), SHARE // 2) for one in batches(number, k)]

    with pytest.raises(Unreplayable, match="replay of attempt 8, where it was finite"):
        recorded.replay(1, fit, batches=worse)
    half = Record(settings(K, max_skips=99, exchange="dense-bf16")).run(9)
    with pytest.raises(Unreplayable, match="'dense-bf16' cannot be replayed"):
        half.replay(1, half.copies[1].fit(9))
    behind = half.replica(1, 0, {})
    advance(behind, half.entries)  # but what is shared can be
    assert shared_digests(behind) == half.digests[-1]
