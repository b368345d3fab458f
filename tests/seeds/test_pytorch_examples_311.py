"""pytorch/examples#311: half precision works on one GPU and diverges on two, the validation loss is NaN, and back ends
fail with words that help nobody. Case by case; docs/seeds.md tells the story of each."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import groups
import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, loss_of, net, replicas_are_equal, run_ranks, weights
from groups import run_group, run_to_end, tiny_job
from seeds.labelled import StartsElsewhere, TwoLayers, Validated, accuracy, shares, work_by_gloo_alone
from simulation import Group, SmallNet, batches, cross_entropy, settings
from torch import Tensor, nn

from elastic_dgc.ddp import DGC, attach
from elastic_dgc.errors import UsageError
from elastic_dgc.exchange.collectives import need_backend
from elastic_dgc.precision.loss_scale import LossScale
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.settings import StepSettings

FIXED = LossScale(256.0)  # --loss-scale=256
MOVING = LossScale(2.0**22, growth_every=5)  # so high that it overflows within the test


def as_there(**changes: Any) -> StepSettings:
    """`--fp16 --loss-scale=256 --lr=.01`."""
    there: dict[str, Any] = {
        "precision": "fp16", "loss_scale": FIXED, "schedule": ScheduleConfig(kind="constant"),
        "optimizer": OptimizerConfig(lr=0.01, momentum=0.9, weight_decay=1e-4),
    }  # fmt: skip
    return settings(2, **{**there, **changes})


def learning(workers: int, using: StepSettings, attempts: int = 60) -> tuple[Group, list[float]]:
    """A group after so many attempts on data that can be learned, and its losses."""
    group = Group(workers, using, model=TwoLayers, batches_of=shares)
    return group, [group.step().decision.loss for _ in range(attempts)]


def test_half_precision_on_one_worker() -> None:
    """Worked there: `--fp16` on one GPU."""
    group, losses = learning(1, as_there())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert accuracy(group.replicas[0].model) > 0.85
    assert group.replicas[0].counters.skipped == 0


def test_full_precision_on_two_workers() -> None:
    """Worked there: 32 bit on two GPUs."""
    runs = [learning(workers, as_there(precision="fp32", loss_scale=LossScale()), 20) for workers in (1, 2)]
    assert runs[0][1] == runs[1][1]
    assert runs[0][0].state() == runs[1][0].state()


@pytest.mark.parametrize("exchange", ["dgc", "dense", "dense-bf16"])
@pytest.mark.parametrize("scale", [FIXED, MOVING], ids=["loss-scale-256", "moving"])
def test_half_precision_on_two_workers(exchange: Any, scale: LossScale) -> None:
    """Broken there: unstable, or learning more slowly. Here the same losses as on one worker, and the same bits."""
    one, two = (learning(workers, as_there(exchange=exchange, loss_scale=scale)) for workers in (1, 2))
    assert one[1] == two[1]
    assert one[0].state() == two[0].state()
    assert sum(two[1][-10:]) < 0.5 * sum(two[1][:10])
    counters = two[0].replicas[0].counters
    assert (counters.skipped > 0) == (scale is MOVING)
    assert counters.applied > 40


def test_loss_scale_256_stays_and_a_moving_one_halves() -> None:
    """The same overflow under both: skipped by both workers, and the scale is one number for all of them."""

    def steep(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        weight = next(model.parameters())
        extra = (weight - weight.detach()).abs().sum().sqrt()  # finite, but its gradient is not
        usual = cross_entropy(model, batch)
        return usual + (extra - extra.detach()) if batch[0][0, 0] == 77.0 else usual

    def of(number: int, k: int) -> list[MicroBatch]:
        found = shares(number, k)
        if (number, k) == (3, 1):
            found[0].data[0][0, 0] = 77.0
        return found

    for scale, expected in ((FIXED, 256.0), (LossScale(256.0, growth_every=100), 128.0)):
        group = Group(2, as_there(loss_scale=scale), model=TwoLayers, loss=steep, batches_of=of).run(6)
        assert [replica.counters.loss_scale for replica in group.replicas] == [expected] * 2
        assert group.replicas[0].counters.skipped == 1
        assert group.replicas[0].counters.applied == 5


def test_casting_the_output_to_float_changes_nothing() -> None:
    """Tried there, without luck. Under autocast the criterion computes in fp32 anyway."""

    def cast(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])

    plain, with_cast = (Group(2, as_there(), loss=loss).run(8) for loss in (cross_entropy, cast))
    assert plain.state() == with_cast.state()


def test_the_statistics_of_validation_stay_finite() -> None:
    """NaN there. BatchNorm's running statistics see an overflow of the forward pass before anybody else does; a skipped
    attempt puts them back on the virtual worker that it happened to."""

    def of(number: int, k: int) -> list[MicroBatch]:
        found = batches(number, k)
        if (number, k) == (4, 1):
            found[0].data[0][0] = 1e30
        return found

    group = Group(2, as_there(), batches_of=of).run(4)
    before = {k: dict(one.export()[0]) for replica in group.replicas for k, one in replica.owned.items()}
    kept = {k: {name: value.clone() for name, value in one.items()} for k, one in before.items()}
    assert not group.step().committed
    for replica in group.replicas:
        for k, one in replica.owned.items():
            for name, value in one.export()[0].items():
                assert torch.equal(value, kept[k][name]), name
    group.run(4)
    for replica in group.replicas:
        assert all(bool(b.isfinite().all()) for one in replica.owned.values() for b in one.buffers.values())
        replica.model.eval()
        with torch.no_grad():
            assert cross_entropy(replica.model, batches(9, 0)[0].data).isfinite()


@pytest.mark.processes
def test_replicas_that_start_from_other_weights(tmp_path: Path) -> None:
    """The cause there: `replicate` gave the fp16 weights to the first GPU only. Here nobody copies weights, everyone
    draws them from the seed, and a digest at start names the tensor and the worker where somebody did not."""
    for end in run_group(tiny_job(str(tmp_path), task=StartsElsewhere(), precision="fp16"), 2):
        assert end[:2] == ("raised", "Disagreement"), end
        assert re.search(r"'parameter/0\.weight' on workers? .*\b1 of 2", end[2]), end
        assert "\n" not in end[2]


@pytest.mark.processes
def test_validation_in_half_precision_on_one_and_two_workers(tmp_path: Path) -> None:
    """'Validation loss is often NaN' there. Here, through the whole trainer, it is finite, and on two workers over TCP
    the same number as on one."""
    ends = [validated(tmp_path, workers, f"on-{workers}") for workers in (1, 2)]
    for one in ends:
        assert all(math.isfinite(row["loss"]) for row in one["evaluations"])
        assert one["evaluations"][-1]["loss"] < one["evaluations"][0]["loss"]
    for name in ("digest", "residual_digest", "evaluations"):
        assert ends[0][name] == ends[1][name]


@pytest.mark.processes
def test_evaluation_leaves_training_as_it_was(tmp_path: Path) -> None:
    """The workaround there 'breaks eval mode'. Here a run that is evaluated after every epoch ends with the bits of
    one that is evaluated once."""
    often, once = (validated(tmp_path, 2, f"every-{every}", evaluate_every=every) for every in (1, 99))
    assert (len(often["evaluations"]), len(once["evaluations"])) == (4, 1)
    assert often["evaluations"][-1] == once["evaluations"][-1]
    for name in ("digest", "residual_digest"):
        assert often[name] == once[name]


@pytest.mark.processes
def test_half_precision_over_tcp_and_over_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dist-backend`: neither worked there. Here whole gradients in fp16 training go by our frames over TCP, or by
    gloo beside them, and the bits are the same."""
    by_frames = validated(tmp_path, 2, "all-to-all", exchange="dense", transport="all-to-all")
    monkeypatch.setattr(groups, "_work", work_by_gloo_alone)
    by_gloo = validated(tmp_path, 2, "collectives", exchange="dense", transport="collectives")
    for name in ("digest", "evaluations"):
        assert by_frames[name] == by_gloo[name]


def validated(folder: Path, workers: int, name: str, **changes: Any) -> dict[str, Any]:
    """How a run in fp16 with a loss scale of 256 ended, as JSON carries it."""
    fields = {"precision": "fp16", "loss_scale": 256.0, "epochs": 4, **changes}
    job = tiny_job(str(folder / name), task=Validated(), **fields)
    ended: dict[str, Any] = json.loads(json.dumps(run_to_end(job, [workers])[0]))
    return ended


def _scaled() -> tuple[list[float], Tensor, float]:
    """DDP, our hook, autocast and GradScaler; an overflow on rank 1 in step 7."""
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    state = attach(model, optimizer, DGC(density=0.05, warmup=(1.0,), warmup_steps=2, min_numel=100), scaler=scaler)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, step % 5, dist.get_rank())
        before = weights(model)
        bad = step == 7
        scaler.scale(loss * (1e38 if bad and dist.get_rank() == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, weights(model)) is bad, step
        assert replicas_are_equal(model)
        losses.append(float(loss.detach()))
    assert (state.steps, state.skipped) == (29, 1)
    return losses, weights(model), scaler.get_scale()


def over_gloo() -> tuple[list[float], float]:
    losses, trained, scale = _scaled()
    assert bool(trained.isfinite().all())
    return losses, scale


@pytest.mark.processes
def test_ddp_in_half_precision_over_gloo_with_the_hook_and_a_grad_scaler() -> None:
    """Two real processes of plain DDP, as the report's script became later: equal at every step, an overflow on one
    of them included, and learning."""
    found = run_ranks(2, over_gloo)
    assert [scale for _, scale in found] == [128.0, 128.0]
    for losses, _ in found:
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize(
    ("name", "lacking", "said"),
    [
        (
            "nccl",
            "is_nccl_available",
            "was built without it; use gloo, which takes GPU tensors too, or install a",
        ),
        ("gloo", "is_available", "was built without torch.distributed; install one from pytorch.org"),
        ("tcp", None, "backend = 'tcp' is not known here; use gloo, or nccl on NVIDIA's GPUs"),
    ],
)
def test_a_missing_backend_is_named_with_its_mend(
    monkeypatch: pytest.MonkeyPatch, name: str, lacking: str | None, said: str
) -> None:
    """'_Map_base::at' for a missing nccl, and `AttributeError: ... no attribute '_backend'` for gloo and tcp, there."""
    if lacking is not None:
        monkeypatch.setattr(dist, lacking, lambda: False)
    with pytest.raises(UsageError) as error:
        need_backend(name, "cuda")
    assert f"'{name}'" in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_half_precision_parameters_are_refused_with_the_mend() -> None:
    """The model itself was fp16 there, and its copies the cause. Here parameters are fp32, and autocast makes the
    halves."""
    with pytest.raises(UsageError, match=r"parameter '\S+' is torch\.float16: parameters must be float32; --precision"):
        Group(2, as_there(), model=lambda: SmallNet().half())
