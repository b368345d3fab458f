"""What the type of the values on the wire costs in accuracy: the same runs with fp32, bf16, fp16 and int8 (which is
`--preset dgc-max`), and with a tenth of the small tensors too.

    python jobs/compare_values.py                               # the embedded digits
    python jobs/compare_values.py --data cifar10/ --epochs 4    # CIFAR-10 as Parquet, with a small network

Each is trained once per seed; the spread between seeds says what a difference is worth. The network for CIFAR-10 has
three convolutions with stride 2 (94 thousand parameters): small enough for a laptop, not made for records.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import click
from torch import Tensor, nn

from elastic_dgc import CompressionConfig, ElasticTrainer, OptimizerConfig, RunConfig
from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.step.config import ScheduleConfig
from elastic_dgc.tasks.image import ImageClassification, ImageConfig

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {"values": "fp32"},
    "bf16": {"values": "bf16"},
    "fp16": {"values": "fp16"},
    "int8": {"values": "int8"},
    "int8, small 0.1": {"values": "int8", "small_density": 0.1},
}
CIFAR = ImageConfig(
    model="resnet20", classes=10, crop="pad", flip=True, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)
)


class Strided(nn.Module):
    """conv3x3, stride 2, BatchNorm, ReLU, three times (32, 64, 128 channels); mean; linear."""

    def __init__(self) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for index, (before, after) in enumerate(((3, 32), (32, 64), (64, 128))):
            layers[f"conv{index}"] = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers[f"norm{index}"] = nn.BatchNorm2d(after)
            layers[f"relu{index}"] = nn.ReLU()
        self.features = nn.Sequential(layers)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


class SmallCifar(ImageClassification):
    """CIFAR-10 with `Strided`."""

    name = "cifar10-strided"

    def model(self) -> nn.Module:
        return Strided()


def run_of(data: str | None, epochs: int | None, seed: int) -> tuple[ImageClassification, RunConfig]:
    """The task and the settings that all kinds share."""
    if data is None:
        digits = recipe("digits")
        return ImageClassification(digits.task, seed=seed), digits.run.with_values(
            seed=seed, epochs=epochs or digits.run.epochs
        )
    epochs = epochs or 4
    config = RunConfig(
        virtual_workers=4,
        batch=128,
        epochs=epochs,
        seed=seed,
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=0.25),
        compression=CompressionConfig(density=0.001, warmup=(0.25, 0.0625, 0.015625, 0.004), warmup_epochs=0.25),
    )
    return SmallCifar(CIFAR.with_values(data=data), seed=seed), config


@click.command(help=__doc__)
@click.option("--data", help="Folder of CIFAR-10 as Parquet; without: the embedded digits.")
@click.option("--epochs", type=int, help="By default 4 for CIFAR-10, the recipe's for the digits.")
@click.option("--seeds", default="0,1", show_default=True)
@click.option("--workers", default="1", show_default=True, help="The result does not depend on it.")
@click.option("--kinds", default=";".join(["dense", *KINDS]), show_default=True)
@click.option("--json", "to", help="Write the figures to this file.")
def main(data: str | None, epochs: int | None, seeds: str, workers: str, kinds: str, to: str | None) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="compare_values-") as storage:
        for kind in kinds.split(";"):
            for seed in seeds.split(","):
                task, config = run_of(data, epochs, int(seed))
                name = f"{kind}-{seed}".replace(", ", "-").replace(" ", "-")
                exchange = "dense" if kind == "dense" else "dgc"
                compression = config.compression.with_values(**KINDS.get(kind, {}))
                config = config.with_values(
                    storage=storage, name=name, workers=workers, exchange=exchange, compression=compression
                )
                report = ElasticTrainer(task, config, dashboard=False, quiet=True).fit().report
                row = {key: report[key] for key in ("test_accuracy", "upload_ratio", "steps", "seconds", "digest")}
                found.setdefault(kind, []).append({"seed": int(seed), **row})
                click.echo(f"{name}: {row}")
                if to is not None:
                    Path(to).write_text(json.dumps(found, indent=1))
    click.echo(f"{'':16}{'accuracy':>10}   by seed")
    for kind, rows in found.items():
        accuracies = [row["test_accuracy"] for row in rows]
        shown = "  ".join(f"{one:.4f}" for one in accuracies)
        click.echo(f"{kind:16}{statistics.mean(accuracies):>10.4f}   {shown}")


if __name__ == "__main__":
    try:
        main()
    except ElasticDGCError as error:
        sys.exit(f"error: {error}")
