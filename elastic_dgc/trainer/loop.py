"""The loop: attempts, evaluations at the ends of epochs, checkpoints by time. The same on every worker."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_dgc.data.audit import AuditWriter
from elastic_dgc.data.order import Order
from elastic_dgc.data.source import Source
from elastic_dgc.errors import Diverged, Fenced, TaskFailed
from elastic_dgc.keeping.storage import Storage
from elastic_dgc.log import logger
from elastic_dgc.step.attempt import Outcome, attempt
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.row import Request
from elastic_dgc.trainer.corrupt import CorruptSamples
from elastic_dgc.trainer.diagnosis import State, failed, going_on_skipping, mend, scale_moved, skipped, skips_in_a_row
from elastic_dgc.trainer.evaluation import evaluate
from elastic_dgc.trainer.examination import examine, heal
from elastic_dgc.trainer.feed import Feed, to_device
from elastic_dgc.trainer.figures import Figures
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.pays import Pays
from elastic_dgc.trainer.saving import Checkpoints

AUDIT_FOLDER = "audit"
MOST_HEALED = 8  # what breaks more often than this in a run is not to be trained on


@dataclass
class Signals:
    """What other threads of this process want; read at every boundary, told to everyone by the vote."""

    stop: Any = lambda: False  # the driver or Ray wants us to save and leave
    fenced: Any = lambda: None  # why a newer view makes us the past
    progress: Any = lambda progress: None  # called by worker 0 after every attempt


@dataclass
class Totals:
    """Figures of the run that depend on the number of workers, so they are no part of shared state."""

    wire_bytes: int = 0  # of earlier views, and of this one up to the last checkpoint
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)
    samples_at_start: int = 0


class Training:
    """A worker's part in training, from the state it was given to the end of the run."""

    def __init__(
        self, job: Job, group: Group, replica: Replica, order: Order, feed: Feed, test: Source | None,
        checkpoints: Checkpoints, storage: Storage, totals: Totals, signals: Signals, figures: Figures | None,
        corrupt: CorruptSamples | None = None,
    ) -> None:  # fmt: skip
        self.job, self.group, self.replica, self.order, self.feed, self.test = job, group, replica, order, feed, test
        self.checkpoints, self.storage, self.totals, self.signals = checkpoints, storage, totals, signals
        self.figures = figures
        self.corrupt = corrupt or CorruptSamples(group, {"train": None, "test": test}, {})
        self.log = logger(worker=group.members.rank)
        self.end = order.steps_per_epoch * job.config.epochs
        self.first = replica.counters.attempt
        self._audit = AuditWriter(group.view) if job.config.audit else None
        self._saved_at = time.monotonic()
        self._saved = -1  # the attempt of the last checkpoint of this view
        self._rate = _Rate()
        settings = replica.settings
        self._pays = Pays(group.members, replica.layout.numel, settings.compression.density) if group.leads else None

    def run(self) -> str:
        """Train to the end, or to a stop. Returns 'finished' or 'stopped', with a checkpoint of that boundary."""
        counters = self.replica.counters
        stopping = False
        if counters.hopeless_in_a_row and self.group.leads:
            self.log.warning("%s", going_on_skipping(counters.hopeless_in_a_row, self.job.config.max_skips))
        while counters.attempt < self.end and not stopping:
            outcome = self._attempt()
            asked = outcome.decision.requests
            if Request.FENCED in asked:
                raise Fenced("this group is the past: another start of the run claimed a newer view")
            if counters.attempt % self.job.config.digest_every == 0:
                self.checkpoints.agreement.check("periodic check")
            if counters.attempt % self.order.steps_per_epoch == 0:
                self._evaluate_if_due()
            stopping = Request.STOP in asked and counters.attempt < self.end
            if Request.CHECKPOINT in asked and not stopping:
                self.save()
        self.save()
        return "stopped" if stopping else "finished"

    def _attempt(self) -> Outcome:
        counters, number = self.replica.counters, self.replica.counters.attempt
        self.group.attempt = number
        self.feed.begin()
        try:
            outcome = self.group.run(
                attempt(
                    self.replica, self.group.members, lambda k: self.feed.batches(number, k), self.job.task.loss,
                    requests=self._requests(), fault=self.group.fault,
                )
            )  # fmt: skip
        except TaskFailed as error:
            raise TaskFailed(failed(str(error))) from error.__cause__
        self.group.transport.forget(number)  # its vote returned, so everyone decided the attempt before it (R9)
        self.group.attempt = counters.attempt
        if not outcome.committed and self.group.leads:
            self._say_skipped(outcome)
        for rows in self.feed.left_out.values():
            self.corrupt.note("train", rows)
        if self._audit is not None:
            for k, rows in sorted(self.feed.used.items()):
                epoch, left_out = self.order.epoch_of(number), self.feed.left_out[k]
                self._audit.add(number, epoch, k, "commit" if outcome.committed else "skip", rows, left_out)
        self._rate.add(outcome.decision.samples)
        if self.group.leads:
            self._show(outcome)
        said = self._pays.add(outcome) if self._pays is not None else None
        if said is not None:
            between_nodes = self.group.members.link is not None and self.group.members.link.network is not None
            self.log.log(logging.WARNING if between_nodes and not said[0] else logging.INFO, "%s", said[1])
        if counters.hopeless_in_a_row:
            self._examine(outcome)
        return outcome

    def _say_skipped(self, outcome: Outcome) -> None:
        scale, bad = self.replica.counters.loss_scale, outcome.decision.bad
        if scale != outcome.loss_scale:
            told = scale_moved(outcome.loss_scale, scale, bad)
            self.log.info("attempt %d skipped: %s", outcome.attempt, told)
        else:
            told = self._why(outcome.attempt, outcome.reasons, bad)
            self.log.warning("attempt %d skipped: %s", outcome.attempt, told)

    def _examine(self, outcome: Outcome) -> None:
        """A skip that no loss scale explains: mend the state, if it is that. Raises `Diverged`, on everyone, if it is
        not and it is enough."""
        counters = self.replica.counters
        equal_again = self.checkpoints.agreement.check("after skipped attempts")
        found = examine(self.group, self.replica)
        done = heal(self.group, self.replica, found) if counters.healed < MOST_HEALED and not found.fatal else []
        if found.fatal or (outcome.hopeless and not done and not equal_again):
            raise Diverged(self._diverged(outcome, found.fatal))
        if not done and not equal_again:
            return
        counters.healed += len(done)
        counters.skips_in_a_row = counters.hopeless_in_a_row = 0
        if done and self.group.leads:
            self.log.warning("healed, which makes it finite again, not undisturbed: %s", "; ".join(done))

    def _requests(self) -> Request:
        asked = Request.NONE
        if self.signals.stop():
            asked |= Request.STOP
        if self.group.leads:
            if self.signals.fenced() is not None:
                asked |= Request.FENCED
            if time.monotonic() - self._saved_at >= self.job.config.checkpoint_every_s:
                asked |= Request.CHECKPOINT
        return asked

    def _why(self, number: int, reasons: Sequence[str], bad: Sequence[int]) -> str:
        """The reasons of a skipped attempt. Anyone can name the samples: the order is a pure function."""
        k_total = self.group.members.virtual_workers
        return skipped(reasons, bad, k_total, lambda k: [int(row) for row in self.order.rows(number, k)])

    def _diverged(self, outcome: Outcome, fatal: str | None) -> str:
        """The diagnosis of a run that ends because too many attempts in a row were skipped."""
        counters, bad = self.replica.counters, outcome.decision.bad
        at = f" at loss scale {counters.loss_scale:.15g}" if counters.loss_scale != 1 else ""
        why = f"{fatal}, parameters or optimizer state" if fatal else self._why(outcome.attempt, outcome.reasons, bad)
        verified = self.checkpoints.agreement.verified
        largest = float(self.replica.weights.abs().max())
        lr, overflowed = self.replica.settings.optimizer.lr, outcome.decision.overflowed
        state = State(lr, counters.loss_scale, overflowed, counters.applied, largest)
        mended = mend(state, bool(bad) and not fatal, verified)
        skips = skips_in_a_row(counters.skips_in_a_row, counters.attempt - self.first, at)
        return f"{skips}, the last is attempt {outcome.attempt}: {why}; {mended}"

    def _show(self, outcome: Outcome) -> None:
        counters, config = self.replica.counters, self.job.config
        rate = self._rate.per_second()
        if self.figures is not None:
            self.figures.step(outcome, rate)
        self.signals.progress(
            {
                "phase": "training",
                "attempt": counters.attempt,
                "end": self.end,
                "epoch": (counters.attempt - 1) // self.order.steps_per_epoch + 1,
                "epochs": config.epochs,
                "loss": outcome.decision.loss,
                "lr": outcome.lr,
                "density": outcome.plan.density,
                "images_per_s": rate,
                "upload_ratio": counters.dense_bytes / max(1, counters.upload_bytes),
                "workers": self.group.members.size,
                "view": self.group.view,
                "skipped": counters.skipped,
            }
        )

    def _evaluate_if_due(self) -> None:
        counters, config = self.replica.counters, self.job.config
        epoch = counters.attempt // self.order.steps_per_epoch
        if self.test is None or (epoch % config.evaluate_every and counters.attempt < self.end):
            return
        metrics = evaluate(
            self.job.task, self.group, self.replica, self.test, config.evaluation_batch, config.loader_threads,
            lambda data: to_device(data, self.replica.device), lambda rows: self.corrupt.note("test", rows),
        )  # fmt: skip
        counters.evaluations.append({"epoch": epoch, "attempt": counters.attempt, **metrics})
        if self.group.leads:
            told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            self.log.info("epoch %d of %d: test %s", epoch, config.epochs, told)
            wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
            if wrong:
                self.log.warning(
                    "epoch %d: test %s is not finite: a test sample is not, or what the model makes of one",
                    epoch, " and ".join(wrong),
                )  # fmt: skip
            if self.figures is not None:
                self.figures.evaluation(metrics, counters.attempt)

    def save(self) -> None:
        """A durable checkpoint of this boundary, unless this view has written it already."""
        counters = self.replica.counters
        self.group.attempt = counters.attempt
        if self._saved == counters.attempt:
            return
        self.group.together("saving the audit", self._flush_audit)
        wire_bytes, corrupt = self.wire_bytes(), self.corrupt.everyone()
        self.checkpoints.save(lambda: {"wire_bytes": wire_bytes, "seconds": self.seconds(), "corrupt": corrupt})
        if self.figures is not None:
            self.figures.keep()
        self._saved, self._saved_at = counters.attempt, time.monotonic()

    def _flush_audit(self) -> None:
        text = self._audit.take() if self._audit is not None else ""
        if text:
            name = f"v{self.group.view:06d}-w{self.group.members.rank:05d}-s{self.replica.counters.attempt:09d}.jsonl"
            self.storage.write(f"{AUDIT_FOLDER}/{name}", text.encode())

    def wire_bytes(self) -> int:
        """Bytes handed to the transport by all workers, both directions, in all views that a checkpoint tells of."""
        transport = self.group.transport
        return self.totals.wire_bytes + sum(
            self.group.gather(transport.bytes_sent + transport.bytes_received, "counting bytes")
        )

    def seconds(self) -> float:
        """Seconds of training in all views that a checkpoint tells of."""
        return self.totals.seconds + time.monotonic() - self.totals.started


class _Rate:
    """Samples per second over the last few dozen attempts."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def add(self, samples: int) -> None:
        self._points.append((time.monotonic(), self._points[-1][1] + samples))
        del self._points[:-40]

    def per_second(self) -> float:
        (first, before), (last, after) = self._points[0], self._points[-1]
        return (after - before) / (last - first) if last > first else 0.0
