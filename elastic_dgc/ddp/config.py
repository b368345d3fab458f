"""The settings of the hook: those of the compression, in steps, because DDP knows no epochs."""

from __future__ import annotations

from pydantic import Field, model_validator

from elastic_dgc.compression.config import CompressionConfig

DEADLINE_S = 30.0


class DGC(CompressionConfig):
    """What is sent of a gradient, and how, under DDP. All fields of `CompressionConfig`; `warmup_epochs` has no use."""

    max_skips: int = Field(
        3, ge=1, description="non-finite steps in a row, without a GradScaler, after which training stops"
    )
    deadline_s: float = Field(
        DEADLINE_S, gt=0, description="how long attach and load_state_dict wait for the other ranks"
    )

    @model_validator(mode="after")
    def _steps(self) -> DGC:
        if self.warmup and self.warmup_steps is None:
            raise ValueError(
                f"warmup = {self.warmup} needs warmup_steps, the steps that each of these {len(self.warmup)} densities "
                f"lasts (the paper: an epoch each), since DDP knows no epochs; warmup=() turns the warm-up off"
            )
        if self.warmup_epochs != type(self).model_fields["warmup_epochs"].default:
            raise ValueError(
                f"warmup_epochs = {self.warmup_epochs}: DDP knows no epochs, give the same in steps as warmup_steps"
            )
        return self

    def density_after(self, applied: int) -> float:
        """The density of the step that follows `applied` applied ones."""
        return self.density_at(applied, steps_per_epoch=1)
