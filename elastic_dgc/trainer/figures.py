"""TensorBoard: worker 0 writes what a run looks like over its steps."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from elastic_dgc.keeping.storage import Storage
from elastic_dgc.step.attempt import Outcome

FOLDER = "tensorboard"


class Figures:
    """Event files in the run's folder; where the storage is no local disk, they are written here and copied there at
    every checkpoint."""

    def __init__(self, storage: Storage, view: int, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._storage = storage
        self._copy_from = None if storage.is_local else tempfile.mkdtemp(prefix="elastic_dgc-tensorboard-")
        folder = self._copy_from or str(storage.local_path(FOLDER))
        # purge_step hides what an earlier group wrote beyond the checkpoint this one starts from
        self._writer = SummaryWriter(folder, purge_step=first_step, filename_suffix=f".v{view}")

    def step(self, outcome: Outcome, images_per_s: float) -> None:
        """The figures of one attempt."""
        at, decision = outcome.attempt, outcome.decision
        values = {
            "train/loss": decision.loss,
            "train/learning_rate": outcome.lr,
            "train/images_per_s": images_per_s,
            "compression/density": outcome.plan.density,
            "compression/upload_bytes": float(outcome.upload_bytes),
            "compression/gradient_norm": decision.gradient_norm,
            "train/skipped": float(not outcome.committed),
            "train/loss_scale": outcome.loss_scale,
            "seconds/forward_backward": outcome.seconds.get("compute", 0.0),
            "seconds/vote": outcome.seconds.get("vote", 0.0),
            "seconds/compression": outcome.seconds.get("compress", 0.0),
            "seconds/exchange": outcome.seconds.get("exchange", 0.0),
            "seconds/apply": outcome.seconds.get("apply", 0.0),
        }
        if not math.isnan(decision.v_norm):
            values["compression/residual_norm"] = decision.v_norm
        for name, value in values.items():
            self._writer.add_scalar(name, value, at)

    def evaluation(self, metrics: dict[str, float], at: int) -> None:
        """The metrics of an evaluation after attempt `at - 1`."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"test/{name}", value, at)
        self._writer.flush()

    def keep(self) -> None:
        """Make what was written durable: called with every checkpoint."""
        self._writer.flush()
        if self._copy_from is not None:
            for path in Path(self._copy_from).iterdir():
                self._storage.write(f"{FOLDER}/{path.name}", path.read_bytes())

    def close(self) -> None:
        self.keep()
        self._writer.close()
