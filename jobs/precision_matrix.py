"""Accuracy on the embedded digits in every precision, with every exchange: {fp32, bf16, fp16} x {dgc, dense,
dense-bf16} x {plain, nesterov} x {1, 3 micro-batches}, through the whole trainer.

    python jobs/precision_matrix.py             # all 36: the recipe's network and its 15 epochs
    python jobs/precision_matrix.py --quick     # six of them, with a perceptron, five epochs

A combination is named by its four parts, such as bf16-dgc-nesterov-3. Batch 60 in place of the recipe's 64, so that it
can be cut into 3. A CPU that computes half precision in software needs 15 times as long for the recipe's convolutions,
and hardly longer for a perceptron. One Ray serves all runs. The exit code is 1 where a combination stays below --least.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from torch import nn

from elastic_dgc import ElasticTrainer, ImageClassification, RunConfig
from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.trainer import cluster

PARTS: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "exchange": ("dgc", "dense", "dense-bf16"),
    "momentum": ("plain", "nesterov"),
    "accumulation": ("1", "3"),
}
QUICK = (
    "fp32-dgc-plain-1", "bf16-dgc-plain-1", "fp16-dgc-plain-1", "bf16-dgc-nesterov-3", "fp16-dense-nesterov-1",
    "bf16-dense-bf16-plain-3",
)  # fmt: skip
QUICK_EPOCHS = 5
BATCH = 60


class Perceptron(ImageClassification):
    """The digits with two linear layers and a BatchNorm: 9,866 parameters."""

    name = "digits-perceptron"

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, self.classes)
        )


NETWORKS: dict[str, type[ImageClassification]] = {"convolutions": ImageClassification, "perceptron": Perceptron}


def names() -> list[str]:
    """All combinations."""
    return ["-".join(parts) for parts in itertools.product(*PARTS.values())]


def settings_of(name: str, config: RunConfig) -> RunConfig:
    """The recipe's settings with the parts that a combination is named by."""
    precision, rest = name.split("-", 1)
    exchange, momentum, accumulation = rest.rsplit("-", 2)
    optimizer = config.optimizer
    assert optimizer is not None
    fields = {"precision": precision, "exchange": exchange, "accumulation": int(accumulation), "batch": BATCH}
    changed: RunConfig = config.with_values(optimizer=optimizer.with_values(nesterov=momentum == "nesterov"), **fields)
    return changed


def job_of(name: str, network: str, seed: int, epochs: int | None) -> tuple[ImageClassification, RunConfig]:
    """The task and the settings of one combination."""
    digits = recipe("digits")
    config: RunConfig = settings_of(name, digits.run).with_values(
        epochs=epochs or digits.run.epochs, seed=seed, evaluate_every=1000, checkpoint_every_s=1000
    )
    return NETWORKS[network](digits.task, seed=seed), config


def run(name: str, network: str, seed: int, epochs: int | None, workers: str, storage: str) -> dict[str, Any]:
    """One combination, trained to its end: the figures of its report."""
    task, config = job_of(name, network, seed, epochs)
    config = config.with_values(workers=workers, storage=storage, name=f"{name}-{seed}")
    report = ElasticTrainer(task, config, dashboard=False, quiet=True).fit().report
    kept = ("test_accuracy", "skipped_steps", "steps", "upload_ratio", "seconds", "digest")
    return {"seed": seed, **{key: report[key] for key in kept}}


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each combination."""
    lines = [f"{'':28}{'accuracy':>9}{'skipped':>9}{'fewer bytes':>13}{'seconds':>9}   by seed"]
    for name, rows in found.items():
        mean = {key: statistics.mean(row[key] for row in rows) for key in rows[0] if key != "digest"}
        by_seed = "  ".join(f"{row['test_accuracy']:.4f}" for row in rows)
        lines.append(
            f"{name:28}{mean['test_accuracy']:>9.4f}{mean['skipped_steps']:>9.1f}{mean['upload_ratio']:>13.1f}"
            f"{mean['seconds']:>9.1f}   {by_seed}"
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help=f"Six combinations, a perceptron, {QUICK_EPOCHS} epochs.")
@click.option("--network", type=click.Choice(list(NETWORKS)), help="By default what the first lines say.")
@click.option("--only", help="These combinations alone, by name, separated by commas.")
@click.option("--epochs", type=int, help="By default the recipe's 15.")
@click.option("--seeds", default="0", show_default=True)
@click.option("--workers", default="2", show_default=True, help="The result does not depend on it.")
@click.option("--least", default=0.9, show_default=True, help="Accuracy that every combination is to reach.")
@click.option("--json", "to", help="Write the figures to this file, after every run.")
def main(
    quick: bool, network: str | None, only: str | None, epochs: int | None, seeds: str, workers: str, least: float,
    to: str | None,
) -> None:  # fmt: skip
    wanted = list(QUICK) if quick else names()
    if only is not None:
        wanted = only.split(",")
        unknown = sorted(set(wanted) - set(names()))
        if unknown:
            raise click.UsageError(f"only = {unknown[0]!r} is no combination; one is {QUICK[0]!r}")
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    network = network or ("perceptron" if quick else "convolutions")
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="precision_matrix-") as storage:
        cluster.connect(RunConfig(workers=workers), None, dashboard=False, verbose=False)
        try:
            for name in wanted:
                for seed in map(int, seeds.split(",")):
                    found.setdefault(name, []).append(run(name, network, seed, epochs, workers, storage))
                    click.echo(f"{name}: {found[name][-1]}", err=True)
                    if to is not None:
                        Path(to).write_text(json.dumps(found, indent=1))
        finally:
            cluster.disconnect()
    click.echo(table(found))
    low = [name for name, rows in found.items() if min(row["test_accuracy"] for row in rows) < least]
    if low:
        click.echo(f"below {least:.0%}: {', '.join(low)}")
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except ElasticDGCError as error:
        sys.exit(f"error: {error}")
