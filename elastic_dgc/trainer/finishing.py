"""The end of a run: the plain model file, the digests, the report."""

from __future__ import annotations

import math
import time
from typing import Any

from elastic_dgc.data.audit import assemble, header
from elastic_dgc.errors import Diverged
from elastic_dgc.keeping.storage import Storage
from elastic_dgc.membership.runs import record_result
from elastic_dgc.membership.view import history
from elastic_dgc.models.export import save_model
from elastic_dgc.precision.digest import combine, digests
from elastic_dgc.trainer.corrupt import count_of
from elastic_dgc.trainer.evaluation import averaged_buffers
from elastic_dgc.trainer.figures import FOLDER
from elastic_dgc.trainer.loop import AUDIT_FOLDER, Training

MODEL_FILE = "model.safetensors"
FEW = 10  # where more than one in so many attempts is skipped, it is said at the end


def finish(training: Training, state: str, resumed_from: int | None) -> dict[str, Any]:
    """Write what the run leaves behind, on all workers together; returns the outcome for the driver.

    A finished run gets its model file and `result.json`; a stopped one only reports.
    """
    group, replica, job, storage = training.group, training.replica, training.job, training.storage
    group.fault("finish")
    buffers = averaged_buffers(job.task, group, replica)
    replica.use_buffers(buffers)
    weights = dict(replica.model.state_dict())
    own = {str(k): [combine(digests(one.export()[0])), float(one.v.norm())] for k, one in replica.owned.items()}
    owned = {int(k): value for part in group.gather(own, "finishing") for k, value in part.items()}
    wire_bytes, corrupt = training.wire_bytes(), training.corrupt.everyone()
    report: dict[str, Any] = {"state": state}

    def write() -> None:
        if not group.leads:
            return
        counters, config = replica.counters, job.config
        seconds = training.seconds()
        in_view = time.monotonic() - training.totals.started
        views = history(storage)
        last = counters.evaluations[-1] if counters.evaluations else {}
        report.update(
            {
                "digest": combine(digests(weights)),
                "residual_digest": combine({str(k): value[0] for k, value in owned.items()}),
                "residual_norm": math.sqrt(sum(norm * norm for _, norm in owned.values())),
                "test_accuracy": last.get("accuracy"),
                "test": {k: v for k, v in last.items() if k not in ("epoch", "attempt")},
                "evaluations": counters.evaluations,
                "steps": counters.applied,
                "attempts": counters.attempt,
                "skipped_steps": counters.skipped,
                "healed": counters.healed,
                "loss_scale": counters.loss_scale,
                "precision": replica.settings.precision,
                "exchange": config.exchange,
                "epochs": config.epochs,
                "samples": counters.samples,
                "upload_bytes": counters.upload_bytes,
                "dense_bytes": counters.dense_bytes,
                "upload_ratio": counters.dense_bytes / max(1, counters.upload_bytes),
                "wire_bytes": wire_bytes,
                "corrupt_samples": count_of(corrupt),
                "restarts": sum(view.after_failure for view in views),
                "starts": len(views),
                "resumed_from_step": resumed_from,
                "views": counters.views,
                "workers": group.members.size,
                "virtual_workers": config.virtual_workers,
                "parameters": replica.layout.numel,
                "device": job.device,
                "seconds": seconds,
                "images_per_s": (counters.samples - training.totals.samples_at_start) / max(in_view, 1e-9),
                "run_url": storage.url(),
                "checkpoints": storage.url("checkpoints"),
                "tensorboard": storage.url(FOLDER),
            }
        )
        if config.audit:
            report["audit_lines"] = _audit(training, storage)
        if counters.skipped * FEW > counters.attempt:
            text = "%d of %d attempts were skipped: little was learned from their samples; the log says why"
            training.log.warning(text, counters.skipped, counters.attempt)
        if state == "finished":
            bad = replica.first_bad(weights)  # parameters passed a checkpoint's check, but a mean of buffers may be bad
            if bad is not None:
                raise Diverged(
                    f"model file not written: it would hold {bad}; the last verified checkpoint, of "
                    f"{training.checkpoints.agreement.verified}, is untouched"
                )
            storage.write(MODEL_FILE, save_model(weights))
            report["model"] = storage.url(MODEL_FILE)
            record_result(storage, {**report, "state": "finished"})

    group.together("finishing", write)
    return report


def _audit(training: Training, storage: Storage) -> int:
    """Assemble the run's audit from all views' segments; returns how many lines it has."""
    segments = [storage.read(f"{AUDIT_FOLDER}/{name}").decode() for name in storage.list(AUDIT_FOLDER)]
    counters = training.replica.counters
    views = [(view, first) for view, first in counters.views]
    fingerprint = training.job.identity["data"]
    lines = assemble(segments, views, header(training.order, fingerprint), counters.attempt)
    storage.write("audit.jsonl", "".join(line + "\n" for line in lines).encode())
    return len(lines)
