"""`elastic-dgc bench`: measurements on the user's own machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from elastic_dgc.errors import Stopped, StorageError, UsageError


class _Commands(click.Group):
    """A measurement that is broken off leaves nothing to go on from."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("the benchmark was stopped, nothing was written") from None


@click.group(cls=_Commands)
def bench() -> None:
    """Measure on these machines: what compression costs, and which exchange pays on this network."""


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "write the figures to this file as JSON; '-': to stdout, and the table to stderr"
    return click.option("--json", "to", default=None, metavar="FILE", help=text, callback=_writable)(command)


def _writable(_: click.Context, __: click.Parameter, to: str | None) -> str | None:
    """The option as it is. Raises `UsageError` where the file could not be written: said before minutes of measuring,
    not after. A file that is there keeps its bytes; none is left behind."""
    if to is None or to == "-":
        return to
    file = Path(to)
    try:
        there = file.is_symlink() or file.exists()
        if there and not (file.is_file() or file.is_dir()):
            return to  # a pipe or a device: whoever reads it would notice
        with file.open("a"):
            pass
        if not there:
            file.unlink()
    except OSError as error:
        raise UsageError(
            f"--json {to}: cannot be written ({error.strerror}); name a file in a folder that is there"
        ) from None
    return to


def _show(result: dict[str, Any], text: str, to: str | None) -> None:
    click.echo(text, err=to == "-")
    if to == "-":
        click.echo(json.dumps(result))
    elif to is not None:
        try:
            Path(to).write_text(json.dumps(result, indent=1) + "\n")
        except OSError as error:
            raise StorageError(
                f"--json {to}: cannot be written any more ({error.strerror}); the table is above"
            ) from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@bench.command()
@click.option("--model", default=None, help="network whose tensors are compressed, of torchvision or ours  [resnet50]")
@click.option("--density", default=None, metavar="N", help="share of every large tensor that is sent  [0.001]")
@click.option("--values", default=None, metavar="fp32|bf16|fp16|int8", help="value type in the timed pass  [bf16]")
@click.option("--rounds", default=None, metavar="N", help="medians are over so many rounds  [9]")
@_json_option
def compression(to: str | None, **values: Any) -> None:
    """Time one compression against plain passes over the same memory, and count the bytes of its messages.

    One thread. Everything is interleaved within rounds, so that other work on the machine meets all alike.
    """
    from elastic_dgc.bench.compression import CompressionBench, measure, report

    result = measure(CompressionBench(**_given(**values)))
    _show(result, report(result), to)


@bench.command()
@click.option("--model", default=None, help="network, of torchvision or ours  [resnet50]")
@click.option("--batch", default=None, metavar="N", help="random images per worker and step  [2]")
@click.option("--size", default=None, metavar="N", help="height and width of the images  [64]")
@click.option("--density", default=None, metavar="N", help="of the DGC modes, which are past the warm-up  [0.001]")
@click.option("--rounds", default=None, metavar="N", help="rounds; ratios are medians of those within a round  [5]")
@click.option("--steps", default=None, metavar="N", help="steps of a mode in a round  [4]")
@click.option("--modes", default=None, metavar="A,B,...", help="what is measured; all by default")
@click.option(
    "--transport", default=None, metavar="auto|all-to-all|tree|collectives", help="how our messages travel  [auto]"
)
@click.option("--mode-limit-s", default=None, metavar="N", help="slow modes get fewer steps, to take no longer  [60]")
@click.option("--world", type=int, default=None, metavar="N", help="processes on this machine  [2 without a cluster]")
@click.option("--address", default=None, help="Ray cluster; by default the job's")
@click.option("--workers", type=int, default=None, metavar="N", help="workers on the cluster; by default one a node")
@click.option("--verbose", is_flag=True, help="show what Ray and the workers print")
@_json_option
def exchange(
    to: str | None, world: int | None, address: str | None, workers: int | None, verbose: bool, **values: Any
) -> None:
    """Time a training step with every way to exchange, side by side, on the workers there are.

    DGC, whole gradients, PyTorch DDP with its PowerSGD hook and with ours, against the step without any exchange. On a
    Ray cluster (--address, or RAY_ADDRESS), else in processes of this machine. The last lines say what pays here.
    """
    from elastic_dgc.bench.exchange import ExchangeBench
    from elastic_dgc.bench.starting import on_ray, on_this_machine
    from elastic_dgc.bench.verdict import report, summarise
    from elastic_dgc.trainer.cluster import address_of

    if values["modes"] is not None:
        values["modes"] = tuple(name.strip() for name in values["modes"].split(",") if name.strip())
    config = ExchangeBench(**_given(**values))
    if world is not None and (address is not None or workers is not None):
        raise UsageError("world starts processes on this machine, address and workers are for a cluster: give one")
    where = None if world is not None else address_of(address)
    if where is None and workers is not None:
        raise UsageError(f"workers = {workers} is for a Ray cluster: give its --address, or --world {workers}")

    def say(text: str) -> None:
        click.echo(text, err=True)

    if where is None:
        found = on_this_machine(config, 2 if world is None else world, say)
    else:
        found = on_ray(config, where, workers, say, verbose)
    result = {**summarise(config, found), "nodes": found["nodes"]}
    _show(result, report(result), to)
