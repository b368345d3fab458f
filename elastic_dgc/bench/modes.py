"""The ways to exchange that are held against each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from elastic_dgc.compression.config import Exchange

NONE = "none"
POWERSGD_START = 2  # dense steps before it: the least that DDP's rebuilt buckets allow
Family = Literal["none", "dgc", "dense", "ddp"]


@dataclass(frozen=True)
class Mode:
    """`family` 'dgc' and 'dense' are our step, with its `exchange`; 'ddp' is PyTorch DDP's, with a `hook`: None,
    'bf16', PowerSGD's rank, or our 'dgc'. `fields`: of `CompressionConfig`. `warm_steps` come before anything is timed.
    """

    name: str
    family: Family
    says: str
    exchange: Exchange = "dgc"
    fields: dict[str, Any] = field(default_factory=dict)
    hook: Literal["bf16", "dgc"] | int | None = None
    warm_steps: int = 1

    @property
    def compresses(self) -> bool:
        """Whether it is DGC, of our step or of our hook."""
        return self.family == "dgc" or self.hook == "dgc"


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode(NONE, "none", "plain SGD on each worker alone", warm_steps=2),
        Mode("dgc", "dgc", "ours: DGC, fp32 values", warm_steps=3),
        Mode("dgc-bf16", "dgc", "ours: DGC, bf16 values", fields={"values": "bf16"}, warm_steps=2),
        Mode("dgc-max", "dgc", "ours: DGC, preset dgc-max", fields={"preset": "dgc-max"}, warm_steps=3),
        Mode("dense", "dense", "ours: whole gradients, fp32", exchange="dense"),
        Mode("dense-bf16", "dense", "ours: whole gradients, bf16", exchange="dense-bf16"),
        Mode("ddp", "ddp", "PyTorch DDP"),
        Mode("ddp-bf16", "ddp", "PyTorch DDP, bf16 hook", hook="bf16"),
        Mode("ddp-dgc", "ddp", "PyTorch DDP, our hook: DGC, fp32 values", hook="dgc", warm_steps=2),
        Mode(
            "ddp-dgc-max",
            "ddp",
            "PyTorch DDP, our hook: DGC, preset dgc-max",
            fields={"preset": "dgc-max"},
            hook="dgc",
            warm_steps=2,
        ),
        Mode("powersgd1", "ddp", "PyTorch DDP, PowerSGD rank 1", hook=1, warm_steps=POWERSGD_START + 1),
        Mode("powersgd4", "ddp", "PyTorch DDP, PowerSGD rank 4", hook=4, warm_steps=POWERSGD_START + 1),
    )
}


def rotated(modes: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The order of the modes in a round: whoever follows a slow one shall not always be the same."""
    shift = number % len(modes)
    return modes[shift:] + modes[:shift]


def affordable(limit_s: float, step_s: float, rounds: int, steps: int) -> tuple[int, int]:
    """(rounds, steps in each) of a mode whose step takes so long, so that it stays within its limit; one step at
    least."""
    total = max(1, int(limit_s / step_s)) if step_s > 0 else rounds * steps
    if total >= rounds * steps:
        return rounds, steps
    each = max(1, total // rounds)
    return max(1, min(rounds, total // each)), each
