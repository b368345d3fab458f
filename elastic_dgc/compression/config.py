"""The settings of the compression, and the density as a function of the step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from elastic_dgc.config import Config

Exchange = Literal["dgc", "dense", "dense-bf16"]
Values = Literal["fp32", "bf16", "fp16", "int8"]
Preset = Literal["dgc", "dgc-max"]

PRESETS: dict[Preset, dict[str, Any]] = {
    "dgc": {},
    "dgc-max": {"values": "int8"},  # small tensors whole: a tenth of them cost 2 points of accuracy in 4 epochs
}


class CompressionConfig(Config):
    """What is sent of a gradient, and how. Defaults are the paper's (density 0.1 % after four epochs of warm-up)."""

    preset: Preset = Field(
        "dgc", description="values for other fields: dgc, or dgc-max, with the fewest bytes that cost no accuracy"
    )
    density: float = Field(0.001, gt=0, le=1, description="share of every tensor that is sent, after the warm-up")
    warmup: tuple[float, ...] = Field(
        (0.25, 0.0625, 0.015625, 0.004), description="densities before the final one, in turn"
    )
    warmup_epochs: float = Field(1.0, gt=0, description="epochs that each density of the warm-up lasts")
    warmup_steps: int | None = Field(None, ge=1, description="the same in steps; wins over warmup_epochs")
    clip: float | None = Field(None, gt=0, description="clip the joint gradient norm locally to clip * K**-0.5")
    masking: bool = Field(True, description="momentum factor masking: what is sent loses its momentum")
    min_numel: int = Field(256, ge=0, description="2-dim tensors below this size are small, as vectors are")
    small_density: float = Field(
        1.0, gt=0, le=1, description="share that is sent of small tensors; 1: they travel whole"
    )
    small_floor: int = Field(16, ge=1, description="entries that are sent of each small tensor at least")
    values: Values = Field("fp32", description="type of the values on the wire; rounding stays in the residual")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        """What is given wins over the preset, which wins over the defaults."""
        if isinstance(values, dict) and values.get("preset") in PRESETS:
            return {**PRESETS[values["preset"]], **values}
        return values

    def with_values(self, **values: Any) -> Any:
        """As in every `Config`; a preset that is named anew brings its own values along."""
        return super().with_values(**{**PRESETS.get(values.get("preset", "dgc"), {}), **values})

    @field_validator("warmup")
    @classmethod
    def _densities(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        for density in value:
            if not 0 < density <= 1:
                raise ValueError(f"every density must be above 0 and at most 1, not {density}")
        return value

    def steps_each(self, steps_per_epoch: int) -> int:
        """Applied steps that each density of the warm-up lasts."""
        return self.warmup_steps or max(1, round(self.warmup_epochs * steps_per_epoch))

    def density_at(self, applied: int, steps_per_epoch: int) -> float:
        """The density of the step that follows `applied` applied steps. Pure; keyed by applied steps, not attempts."""
        position = applied // self.steps_each(steps_per_epoch)
        return self.warmup[position] if position < len(self.warmup) else self.density
