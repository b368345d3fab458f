"""CIFAR-10 with ResNet-20 in half precision, K = 8: without compression, with DGC, and with DGC while overflows are
injected at random. All three are to end within a point of each other, and nothing is to be NaN.

    python jobs/cifar_precision.py --data cifar10/ --json figures.json

Everything else is the recipe cifar10-resnet20. An overflow multiplies one virtual worker's loss by infinity: that step
is skipped by all workers, so the disturbed run learns from fewer of them. Which steps these are depends on the seed
alone. What stands in --json already is not trained again; with --storage an interrupted run goes on where it was.

Where a CPU has no bf16, torch computes its convolutions one number at a time, and a run takes a day. For such CPUs
there is --precision bf16-emulated: in fp32, with everything rounded that bf16 autocast rounds, forward and backward, so
that only the order of sums differs. The trainer then is in fp32; on a GPU take bf16.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elastic_dgc import ElasticTrainer, ImageClassification, ImageConfig, RunConfig
from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.seeds import uniforms

EMULATED = "bf16-emulated"
KINDS = ("dense", "dgc", "dgc, overflows")
SALT = 0x0F10  # apart from every other use of the generators' seed


class Rounded(torch.autograd.Function):
    """To the nearest bf16 and back, and the gradient too."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().float()


class EmulatedBf16(TorchFunctionMode):
    """What `torch.autocast(dtype=torch.bfloat16)` computes in a residual network, but for the order of sums: products
    of bf16 values added up in fp32, and activations in bf16. What only picks values (relu, padding) needs no
    rounding."""

    PRODUCTS = ("conv2d", "linear")
    OTHERS = ("batch_norm", "add", "__add__", "__iadd__", "mean", "adaptive_avg_pool2d")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.PRODUCTS:
            args = tuple(Rounded.apply(one) if isinstance(one, Tensor) else one for one in args)
        out = func(*args, **(kwargs or {}))
        return Rounded.apply(out) if name in self.PRODUCTS or name in self.OTHERS else out


class Cifar(ImageClassification):
    """`overflows`: the probability with which the loss of a share becomes infinite. `emulated`: bf16 in fp32."""

    name = "cifar-precision"

    def __init__(self, config: ImageConfig, seed: int, overflows: float = 0.0, emulated: bool = False) -> None:
        super().__init__(config, seed)
        self.overflows, self.emulated = overflows, emulated

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "overflows": self.overflows, "emulated": self.emulated}

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        """The trainer has seeded torch by (seed, attempt, virtual worker, micro-batch): that seed is the place, and to
        look at it draws no number that dropout would miss."""
        images, labels = batch
        images = self.normalise(images).contiguous(memory_format=torch.channels_last)  # a seventh faster on a CPU
        with EmulatedBf16() if self.emulated else contextlib.nullcontext():
            logits = model(images)
        mean = nn.functional.cross_entropy(logits, labels)
        place = torch.initial_seed() & 0x7FFFFFFFFFFFFFFF
        return mean * (math.inf if uniforms(SALT, place)[0] < self.overflows else 1.0), len(labels)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "overflows": self.overflows, "emulated": self.emulated}


def run_of(
    kind: str, data: str, seed: int, precision: str, epochs: int | None, overflows: float, model: str
) -> tuple[Cifar, RunConfig]:
    """The task and the settings of one kind."""
    cifar = recipe("cifar10-resnet20")
    task = cifar.task.with_values(data=data, model=model)
    config = cifar.run.with_values(
        exchange="dense" if kind == "dense" else "dgc", precision="fp32" if precision == EMULATED else precision,
        seed=seed, epochs=epochs or cifar.run.epochs, max_skips=50,
    )  # fmt: skip
    return Cifar(task, seed, overflows if kind == "dgc, overflows" else 0.0, precision == EMULATED), config


def figures_of(report: dict[str, Any], seed: int) -> dict[str, Any]:
    """What is kept of a run's report. Raises ValueError where anything in it is not finite."""
    kept = ("test_accuracy", "steps", "skipped_steps", "upload_ratio", "residual_norm", "seconds", "epochs", "digest")
    row = {"seed": seed, **{key: report[key] for key in kept}}
    row["accuracies"] = [one["accuracy"] for one in report["evaluations"]]
    losses = [one["loss"] for one in report["evaluations"]]
    numbers = [value for value in row.values() if isinstance(value, float)] + losses
    if not all(math.isfinite(value) for value in numbers):
        raise ValueError(f"not finite: {row}, losses {losses}")
    return row


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each kind."""
    lines = [
        f"{'':16}{'accuracy':>9}{'to dense':>10}{'steps':>8}{'skipped':>9}{'fewer bytes':>13}{'minutes':>9}   by seed"
    ]
    means = {kind: statistics.mean(row["test_accuracy"] for row in rows) for kind, rows in found.items()}
    for kind, rows in found.items():
        apart = f"{100 * (means[kind] - means['dense']):+.2f}" if "dense" in means else ""
        by_seed = "  ".join(f"{row['test_accuracy']:.4f}" for row in rows)
        first = rows[0]
        minutes = statistics.mean(row["seconds"] for row in rows) / 60
        lines.append(
            f"{kind:16}{means[kind]:>9.4f}{apart:>10}{first['steps']:>8}{first['skipped_steps']:>9}"
            f"{first['upload_ratio']:>13.1f}{minutes:>9.1f}   {by_seed}"
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--data", required=True, help="Folder of CIFAR-10 as Parquet (jobs/prepare_images.py makes one).")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", EMULATED]), default="bf16", show_default=True)
@click.option("--epochs", type=int, help="By default the recipe's 20.")
@click.option("--seeds", default="0,1", show_default=True)
@click.option("--overflows", default=0.002, show_default=True, help="Probability for each step of a virtual worker.")
@click.option("--kinds", default=";".join(KINDS), show_default=True)
@click.option("--model", default="resnet20", show_default=True)
@click.option("--workers", default="2", show_default=True, help="The result does not depend on it.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--storage", help="Keep the runs there; by default they are thrown away.")
@click.option("--json", "to", help="Write the figures to this file, after every run.")
def main(
    data: str, precision: str, epochs: int | None, seeds: str, overflows: float, kinds: str, model: str, workers: str,
    device: str, storage: str | None, to: str | None,
) -> None:  # fmt: skip
    wanted = kinds.split(";")
    for kind in wanted:
        if kind not in KINDS:
            raise click.UsageError(f"kinds has {kind!r}; known are {', '.join(map(repr, KINDS))}")
    settings = {"precision": precision, "epochs": epochs, "overflows": overflows, "model": model}
    known = json.loads(Path(to).read_text()) if to is not None and Path(to).exists() else {}
    if known.get("settings", settings) != settings:
        raise click.UsageError(f"json = {to!r} holds runs with {known['settings']}: name another file")
    found: dict[str, list[dict[str, Any]]] = known.get("runs", {})
    with tempfile.TemporaryDirectory(prefix="cifar_precision-") as folder:
        for seed in map(int, seeds.split(",")):
            for kind in wanted:
                rows = found.setdefault(kind, [])
                if any(row["seed"] == seed for row in rows):
                    continue
                task, config = run_of(kind, data, seed, precision, epochs, overflows, model)
                name = f"cifar-{kind.replace(', ', '-')}-{precision}-{seed}"
                config = config.with_values(name=name, workers=workers, device=device, storage=storage or folder)
                rows.append(figures_of(ElasticTrainer(task, config, dashboard=False).fit().report, seed))
                click.echo(f"{name}: {rows[-1]}", err=True)
                if to is not None:
                    Path(to).write_text(json.dumps({"settings": settings, "runs": found}, indent=1))
    click.echo(table({kind: found[kind] for kind in wanted}))


if __name__ == "__main__":
    try:
        main()
    except ElasticDGCError as error:
        sys.exit(f"error: {error}")
