"""Planted faults: a replica that differs is found, named with its tensor, and, where that was chosen, healed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import groups
import pytest
import torch
from groups import run_group, run_to_end, tiny_job
from mischief import MeansThatAreNoNumbers, Unseeded, work_with_a_flipped_bit
from simulation import Group as Simulation
from simulation import SmallNet, settings, shared_digests
from torch import nn

from elastic_dgc.errors import Disagreement, Diverged, StorageError
from elastic_dgc.exchange.ask import Key, Parcel
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import Network, run_each
from elastic_dgc.exchange.transport import Transport
from elastic_dgc.keeping import checkpoint
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.row import Request
from elastic_dgc.step.state import Counters
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.healing import START, Agreement
from elastic_dgc.trainer.loop import Training
from elastic_dgc.trainer.saving import Checkpoints

CONV = "parameter/conv.weight"
VERIFIED = "attempt 3 in /runs/x/checkpoints/v000001-s000000003"
ADAMW = OptimizerConfig(name="adamw", lr=0.01)


class Alone(Transport):
    """What a group of one has to send."""

    rank, size, bytes_sent, bytes_received = 0, 1, 0, 0

    def send(self, parcels: Sequence[Parcel]) -> None:
        assert not parcels

    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Any]:
        assert not want
        return {}

    def forget(self, before_attempt: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


def agreements(replicas: Sequence[Replica], heal: bool = False, hosts: Sequence[str] = ()) -> list[Agreement]:
    found = []
    for rank, replica in enumerate(replicas):
        group = Group(Members.of(rank, len(replicas), 4), Alone(), 1, 1.0)
        group.attempt = replica.counters.attempt
        found.append(Agreement(group, replica, heal, hosts))
        found[-1].verified = VERIFIED if replica.counters.attempt else None
    return found


def check(them: Sequence[Agreement], what: str = "periodic check", network: Network | None = None) -> str | None:
    """The text of the `Disagreement` that everyone raised, or None. Everyone is at one in it."""
    results = run_each([one.starting() if what == START else one.steps(what) for one in them], network=network)
    told = {None if one.error is None else f"{type(one.error).__name__}: {one.error}" for one in results}
    assert len(told) == 1, told
    text = told.pop()
    assert text is None or text.startswith("Disagreement: workers hold different state"), text
    assert text is None or "\n" not in text
    return text


def flip(tensor: torch.Tensor, at: int = 0, bit: int = 0) -> None:
    tensor.data.view(-1).view(torch.int32)[at] ^= 1 << bit


def test_nothing_is_said_of_equal_replicas_and_little_sent(caplog: pytest.LogCaptureFixture) -> None:
    simulation, network = Simulation(3, settings(optimizer=ADAMW)).run(2), Network()
    before = simulation.state()
    assert check(agreements(simulation.replicas, heal=True), network=network) is None
    assert simulation.state() == before
    assert len(network.sent) == 6
    assert all(sent.bytes < 50 for sent in network.sent)
    assert not caplog.records


@pytest.mark.parametrize("bit", [0, 22, 31])
@pytest.mark.parametrize("apart", [0, 2])
def test_one_flipped_bit_in_one_workers_weights_is_named_with_tensor_and_worker(apart: int, bit: int) -> None:
    simulation = Simulation(4, settings()).run(2)
    flip(simulation.replicas[apart].parameters["conv.weight"], 17, bit)
    simulation.run(1)
    text = check(agreements(simulation.replicas, hosts=["a", "a", "b", "b"]))
    assert text is not None
    assert f"(periodic check, attempt 3): '{CONV}' on worker {apart} of 4 (1 of 54 values); " in text
    assert f"the last verified checkpoint, of {VERIFIED}, is untouched: the same command goes on from it" in text
    assert "--heal majority would overwrite" in text
    assert text.endswith(f"worker {apart} is on {'b' if apart else 'a'}")


def test_one_flipped_bit_in_one_workers_optimizer_state_is_named() -> None:
    simulation = Simulation(3, settings(optimizer=ADAMW)).run(2)
    flip(simulation.replicas[1].applier.state()["head.weight/exp_avg_sq"], 5)
    text = check(agreements(simulation.replicas))
    assert text is not None
    assert "'optimizer/head.weight/exp_avg_sq' on worker 1 of 3 (1 of 216 values); the last verified" in text


@pytest.mark.parametrize("optimizer", [None, ADAMW])
def test_the_majority_heals_those_that_differ_and_it_is_counted_and_said_once(
    optimizer: OptimizerConfig | None, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {} if optimizer is None else {"optimizer": optimizer}
    simulation, undisturbed = Simulation(5, settings(**changes)).run(2), Simulation(5, settings(**changes)).run(2)
    flip(simulation.replicas[0].parameters["conv.weight"], 17)
    simulation.replicas[0].parameters["head.bias"].data.fill_(float("nan"))
    flip(simulation.replicas[3].parameters["conv.weight"], 2)
    if optimizer is not None:
        flip(simulation.replicas[3].applier.state()["conv.bias/step"])
    assert check(agreements(simulation.replicas, heal=True)) is None
    expected = undisturbed.state() | {"counters": simulation.state()["counters"]}
    assert simulation.state() == expected, "equal on everyone, and what the majority held"
    assert [replica.counters.healed for replica in simulation.replicas] == [2] * 5
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("[worker 0] healed from the majority (periodic check, attempt 2): '")
    assert f"'{CONV}' on workers 0 and 3 of 5 (1 of 54 values); 'parameter/head.bias' on worker 0 of 5 (4 of 4" in said
    assert ("'optimizer/conv.bias/step' on worker 3 of 5 (1 of 1 value)" in said) == (optimizer is not None)
    assert "equal again, not undisturbed" in said
    simulation.run(3)
    assert check(agreements(simulation.replicas)) is None


def test_what_the_workers_count_cannot_be_healed() -> None:
    simulation = Simulation(3, settings()).run(1)
    simulation.replicas[2].counters.samples += 1
    text = check(agreements(simulation.replicas, heal=True))
    assert text is not None
    assert "'counter/samples' on worker 2 of 3; the last verified" in text
    assert [replica.counters.healed for replica in simulation.replicas] == [0] * 3


@pytest.mark.parametrize(
    ("workers", "apart", "said", "remedy"),
    [
        (2, [1], "on workers 0 and 1 of 2 (1 of 54 values)", "with three workers or more, --heal majority"),
        (4, [0, 2], "on workers 0 and 2 against workers 1 and 3 of 4 (1 of 54 values)", "no majority holds the same"),
    ],
)
def test_without_a_majority_all_stop_at_the_last_verified_checkpoint(
    workers: int, apart: list[int], said: str, remedy: str
) -> None:
    simulation = Simulation(workers, settings()).run(1)
    for rank in apart:
        flip(simulation.replicas[rank].parameters["conv.weight"], 3)
    before = [shared_digests(replica) for replica in simulation.replicas]
    text = check(agreements(simulation.replicas, heal=True))
    assert text is not None
    assert f"'{CONV}' {said}; the last verified checkpoint, of {VERIFIED}," in text
    assert remedy in text
    assert [shared_digests(replica) for replica in simulation.replicas] == before


class Entropic(SmallNet):
    """Initialised by what no seed reaches: https://github.com/pytorch/examples/issues/311 had such replicas."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.head.weight.copy_(torch.frombuffer(bytearray(os.urandom(216)), dtype=torch.uint8).view(4, 54) / 256)


class OtherBuffers(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.norm.running_mean.copy_(torch.frombuffer(bytearray(os.urandom(6)), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Entropic, "'parameter/head.weight' on all 3 workers, no two alike ("),
        (OtherBuffers, "'buffer/norm.running_mean' on all 3 workers, no two alike ("),
    ],
)
def test_a_model_that_is_initialised_without_the_seed_is_found_at_the_start(
    model: Callable[[], nn.Module], said: str
) -> None:
    text = check(agreements(Simulation(3, settings(), model).replicas, heal=True), START)
    assert text is not None
    assert said in text
    assert text.endswith("or read them from a file that is the same on all nodes")


def test_a_replica_that_starts_from_other_weights_is_found_and_not_healed() -> None:
    simulation = Simulation(3, settings())
    with torch.no_grad():
        simulation.replicas[1].parameters["conv.weight"].copy_(SmallNet().conv.weight)
    text = check(agreements(simulation.replicas, heal=True), START)
    assert text is not None
    assert f"(at start, attempt 0): '{CONV}' on worker 1 of 3 (54 of 54 values); a run starts from the same" in text


def test_a_wrong_digest_of_equal_bytes_is_told_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = iter(["a", "a", "b"])
    monkeypatch.setattr("elastic_dgc.trainer.healing.fingerprint", lambda *given: next(wrong))
    assert check(agreements(Simulation(3, settings()).run(1).replicas)) is None
    assert "worker 2 computed a wrong digest (periodic check, attempt 1)" in caplog.text


def test_the_check_is_due_at_the_ends_of_epochs_too_and_before_their_evaluation() -> None:
    counters, done = Counters(), []

    def attempt() -> SimpleNamespace:
        counters.attempt += 1
        return SimpleNamespace(decision=SimpleNamespace(requests=Request.NONE))

    agreement = SimpleNamespace(check=lambda what: done.append((counters.attempt, what)))
    training: Any = SimpleNamespace(
        replica=SimpleNamespace(counters=counters), end=6, order=SimpleNamespace(steps_per_epoch=2), _attempt=attempt,
        job=SimpleNamespace(config=SimpleNamespace(digest_every=4)), save=lambda: None,
        checkpoints=SimpleNamespace(agreement=agreement),
        _evaluate_if_due=lambda: done.append((counters.attempt, "evaluation")),
    )  # fmt: skip
    assert Training.run(training) == "finished"
    assert done == [(2, "evaluation"), (4, "periodic check"), (4, "evaluation"), (6, "evaluation")]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Checkpoints, Replica, Callable[[], list[int]]]:
    """Checkpoints of one worker of which one is kept, two already written, and which attempts are there."""
    simulation = Simulation(1, settings(optimizer=ADAMW)).run(1)
    storage, replica = open_storage(str(tmp_path)), simulation.replicas[0]
    checkpoints = Checkpoints(storage, Group(Members.of(0, 1, 4), Alone(), 1, 1.0), replica, "run", keep=1)
    checkpoints.save(dict)
    simulation.run(1)
    checkpoints.save(dict)
    simulation.run(1)
    return checkpoints, replica, lambda: [one.attempt for one in checkpoint.manifests(storage)[0]]


@pytest.mark.parametrize("where", ["weights", "optimizer", "residual", "buffer"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_not_finite_is_never_written_and_the_last_verified_one_stays(
    saved: tuple[Checkpoints, Replica, Callable[[], list[int]]], where: str, value: float
) -> None:
    checkpoints, replica, attempts = saved
    tensor = {
        "weights": replica.weights,
        "optimizer": replica.applier.state()["conv.bias/exp_avg"],
        "residual": replica.owned[2].v,
        "buffer": replica.owned[3].buffers["norm.running_var"],
    }[where]
    tensor[2] = value
    for _ in range(3):
        with pytest.raises(Diverged, match=r"checkpoint not written: .*\(1 of \d+ values not finite\)"):
            checkpoints.save(dict)
    assert attempts() == [2]
    assert checkpoints.agreement.verified is not None
    assert checkpoints.agreement.verified.startswith("attempt 2 in ")
    tensor[2] = 0.0
    checkpoints.save(dict)
    assert attempts() == [3]


def test_a_save_that_fails_at_its_end_leaves_the_last_verified_one(
    saved: tuple[Checkpoints, Replica, Callable[[], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, _, attempts = saved

    def full(*given: Any, **more: Any) -> NoReturn:
        raise StorageError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(type(checkpoints._storage), "create", full)
        with pytest.raises(StorageError, match="disk full"):
            checkpoints.save(dict)
    assert attempts() == [2]
    assert checkpoints.load_newest() is not None
    assert checkpoints.agreement.verified is not None
    assert checkpoints.agreement.verified.startswith("attempt 2 in ")


@pytest.mark.processes
def test_two_workers_stop_at_the_last_verified_checkpoint_and_the_run_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(str(tmp_path / "disturbed"))
    with monkeypatch.context() as patched:
        patched.setattr(groups, "_work", work_with_a_flipped_bit)
        ends = run_group(job, 2)
    assert ends[0] == ends[1]
    assert ends[0][:2] == ("raised", Disagreement.__name__)
    text = ends[0][2]
    assert "(before a checkpoint, attempt 7): 'parameter/0.weight' on workers 0 and 1 of 2 (1 of 128 values)" in text
    assert f"of attempt 6 in {job.run_url}/checkpoints/v000001-s000000006, is untouched" in text, text
    outcome, _ = run_to_end(job, [2])
    undisturbed, _ = run_to_end(tiny_job(str(tmp_path / "undisturbed")), [1])
    assert outcome["resumed_from_step"] == 6
    assert outcome["digest"] == undisturbed["digest"]


@pytest.mark.processes
def test_three_workers_are_healed_at_the_next_check_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_work", work_with_a_flipped_bit)
    ends = run_group(tiny_job(str(tmp_path), heal="majority", digest_every=4, checkpoint_every_s=1000.0), 3)
    assert [end[0] for end in ends] == ["returned"] * 3, ends
    assert ends[0][1]["state"] == "finished"
    assert ends[0][1]["healed"] == 1


@pytest.mark.processes
def test_a_task_that_no_seed_reaches_ends_at_the_start_with_the_mend(tmp_path: Path) -> None:
    job = tiny_job(str(tmp_path), task=Unseeded())
    for end in run_group(job, 2):
        assert end[:2] == ("raised", Disagreement.__name__)
        assert "(at start, attempt 0): 'parameter/4.weight' on workers 0 and 1 of 2 (48 of 48 values)" in end[2]
        assert "draw them from torch, numpy or random" in end[2]
    assert not checkpoint.manifests(open_storage(job.run_url))[0]


@pytest.mark.processes
def test_a_model_file_that_would_hold_a_nan_is_not_written(tmp_path: Path) -> None:
    job = tiny_job(str(tmp_path), task=MeansThatAreNoNumbers())
    for end in run_group(job, 2):
        assert end[:2] == ("raised", "Diverged")
        assert "model file not written: it would hold 1.running_var (16 of 16 values not finite)" in end[2]
    storage = open_storage(job.run_url)
    assert not storage.exists("model.safetensors")
    assert checkpoint.manifests(storage)[0][0].attempt == 12
