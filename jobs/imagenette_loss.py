"""ResNet-50 with DGC beside no compression, K = 8: the loss of every step through the whole density warm-up, side by
side.

    python jobs/imagenette_loss.py --data imagenette/ --csv losses.csv

The network of PaddlePaddle/models#3145 on any small set of images as Parquet, at 64x64 so that it needs no GPU. Each of
the four densities of the warm-up lasts an eighth of the steps, the rest of them has 0.1 %. What stands in --json is not
trained again. Prints a plot of the losses, smoothed; the exit code is 1 where a loss of either run is not finite.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elastic_dgc import ElasticTrainer, ImageClassification, RunConfig
from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig

KINDS = {"dense": "o", "dgc": "x"}  # and their marks in the plot
VIRTUAL_WORKERS = 8
PLOT_ROWS, PLOT_COLUMNS = 16, 100


def run_of(
    kind: str, data: str, steps: int, batch: int, size: int, seed: int, lr: float, model: str
) -> tuple[ImageClassification, RunConfig]:
    """The task and the settings of one kind: whole epochs, at least as many as the steps need."""
    there = recipe("imagenet-resnet50")
    task = ImageClassification(
        there.task.with_values(data=data, model=model, classes=None, image_size=size, resize_eval=None), seed
    )
    samples = len(task.train_data())
    epochs = math.ceil(steps / max(1, math.ceil(samples / batch)))
    config = RunConfig(
        virtual_workers=VIRTUAL_WORKERS, batch=batch, epochs=epochs, seed=seed, exchange=kind, evaluate_every=10**6,
        optimizer=OptimizerConfig(lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=epochs / 16),
        compression=there.run.compression.with_values(warmup_steps=max(1, steps // 8)),
    )  # fmt: skip
    return task, config


def figures_of(run_url: str, name: str) -> list[float]:
    """A figure of every attempt of a run, from its TensorBoard files. `run_url`: a local folder."""
    folder = open_storage(run_url).local_path("tensorboard")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [one.value for one in sorted(events.Scalars(name), key=lambda one: one.step)]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of the last `window` finite values."""
    found = []
    for end in range(1, len(values) + 1):
        part = [one for one in values[max(0, end - window) : end] if math.isfinite(one)]
        found.append(sum(part) / len(part) if part else math.nan)
    return found


def plot(curves: dict[str, list[float]], rows: int = PLOT_ROWS, columns: int = PLOT_COLUMNS) -> str:
    """Curves as text, each with its mark; '*' where two meet. Steps to the right, the value upwards."""
    finite = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    if not finite:
        return "(nothing is finite)"
    low, high = min(finite), max(finite)
    length = max(len(curve) for curve in curves.values())
    columns = min(columns, length)
    canvas = [[" "] * columns for _ in range(rows)]
    for name, curve in curves.items():
        for column in range(columns):
            index = column * (length - 1) // max(1, columns - 1)
            if index < len(curve) and math.isfinite(curve[index]):
                row = round((high - curve[index]) / max(high - low, 1e-12) * (rows - 1))
                canvas[row][column] = KINDS[name] if canvas[row][column] == " " else "*"
    labels = [f"{high - (high - low) * row / (rows - 1):8.3f} |" for row in range(rows)]
    lines = [label + "".join(line).rstrip() for label, line in zip(labels, canvas, strict=True)]
    legend = ", ".join(f"{KINDS[name]} {name}" for name in curves)
    return "\n".join([*lines, " " * 9 + "+" + "-" * columns, f"{'':10}step 0 to {length - 1}; {legend}, * both"])


@click.command(help=__doc__)
@click.option("--data", required=True, help="Folder of images as Parquet (jobs/prepare_images.py makes one).")
@click.option("--steps", default=320, show_default=True, help="At least so many; whole epochs are trained.")
@click.option("--batch", default=64, show_default=True, help="Over all 8 virtual workers.")
@click.option("--size", default=64, show_default=True, help="Side of the images in pixels.")
@click.option("--lr", default=0.05, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "auto"]), default="auto", show_default=True)
@click.option("--model", default="resnet50", show_default=True)
@click.option("--workers", default="2", show_default=True, help="The result does not depend on it.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--storage", help="Keep the runs there, a local folder; by default they are thrown away.")
@click.option("--csv", "table", help="Write the losses to this file, a line for each step.")
@click.option("--json", "to", help="Write losses, densities and reports to this file, after each run.")
def main(
    data: str, steps: int, batch: int, size: int, lr: float, seed: int, precision: str, model: str, workers: str,
    device: str, storage: str | None, table: str | None, to: str | None,
) -> None:  # fmt: skip
    if batch % VIRTUAL_WORKERS:
        raise click.UsageError(f"batch = {batch} is no multiple of {VIRTUAL_WORKERS}")
    settings = {
        "steps": steps, "batch": batch, "size": size, "lr": lr, "seed": seed, "precision": precision, "model": model,
    }  # fmt: skip
    known = json.loads(Path(to).read_text()) if to is not None and Path(to).exists() else {}
    if known.get("settings", settings) != settings:
        raise click.UsageError(f"json = {to!r} holds runs with {known['settings']}: name another file")
    losses: dict[str, list[float]] = known.get("losses", {})
    densities: list[float] = known.get("densities", [])
    reports: dict[str, dict[str, Any]] = known.get("reports", {})
    with tempfile.TemporaryDirectory(prefix="imagenette_loss-") as folder:
        for kind in KINDS:
            if kind in reports:
                continue
            task, config = run_of(kind, data, steps, batch, size, seed, lr, model)
            config = config.with_values(
                name=f"loss-{kind}-{seed}", workers=workers, device=device, precision=precision,
                storage=storage or folder,
            )  # fmt: skip
            reports[kind] = ElasticTrainer(task, config, dashboard=False).fit().report
            losses[kind] = figures_of(reports[kind]["run_url"], "train/loss")
            densities = figures_of(reports[kind]["run_url"], "compression/density")
            if to is not None:
                found = {"settings": settings, "losses": losses, "densities": densities, "reports": reports}
                Path(to).write_text(json.dumps(found, indent=1))
    if table is not None:
        with Path(table).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *KINDS, "density"])
            writer.writerows(zip(range(len(densities)), *losses.values(), densities, strict=True))
    window = max(1, len(densities) // 20)
    click.echo(plot({kind: smoothed(values, window) for kind, values in losses.items()}))
    for kind, report in reports.items():
        last = smoothed(losses[kind], window)[-1]
        click.echo(
            f"{kind:6} loss of the last {window} steps {last:.4f}, test accuracy {report['test_accuracy']:.4f}, "
            f"{report['upload_ratio']:.1f} times fewer bytes, {report['skipped_steps']} skipped, "
            f"{report['seconds'] / 60:.1f} minutes, digest {report['digest']}"
        )
    sys.exit(0 if all(math.isfinite(value) for values in losses.values() for value in values) else 1)


if __name__ == "__main__":
    try:
        main()
    except ElasticDGCError as error:
        sys.exit(f"error: {error}")
