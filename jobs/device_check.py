"""The main job on this machine's GPU (or CPU), under eight minutes: does it learn, and is its result the same however
it runs, in fp32, bf16 and fp16?

Runs the digits recipe by `jobs/train.py`, as a user would. In fp32: on one worker, on two (which share a GPU), on two
of which one is killed on the way, and on two that are stopped and started again. All must end with one digest. In bf16
and in fp16: on one worker and on two, with one digest for each. Prints a PASS or FAIL line for each check, SKIP for a
precision that the device does not have (or, on a CPU, computes in software: --precisions bf16,fp16 checks it); the exit
code is 0 where none failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from elastic_dgc.errors import UsageError
from elastic_dgc.precision.autocast import PRECISIONS, Precision, check

TRAIN = Path(__file__).resolve().parent / "train.py"
DEADLINE_S = 470.0  # on a GPU machine; a busy laptop needs more
FULL_EPOCHS, ACCURACY = 15, 0.97  # what the recipe promises, and at how many epochs
STOPPED = 130  # exit code of a run that was stopped with its state saved
KILL = [{"point": "exchange", "view": 1, "attempt": 30, "worker": 1}]


@dataclass
class Check:
    """The runs of one check of a device. `lines` and `results` are what is reported."""

    device: str
    epochs: int
    folder: Path
    until_s: float
    precisions: tuple[Precision, ...] | None  # None: those that the device has
    results: list[dict[str, Any]] = field(default_factory=list)

    def command(self, name: str, workers: int, *more: str, precision: Precision = "fp32") -> list[str]:
        """The user's command."""
        options = {
            "--device": self.device, "--epochs": self.epochs, "--workers": workers, "--gpus-per-worker": 0.5,
            "--name": name, "--storage": self.folder, "--report": self.report(name),
            "--precision": precision,
        }  # fmt: skip
        flat = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, str(TRAIN), *flat, *more]

    def report(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def run(self, command: list[str], *, faults: str = "[]", stop_at: str | None = None) -> tuple[int, str, float]:
        """Run a command to its end; with `stop_at`, ask it to stop (SIGTERM) at the first line that holds this text.
        Returns exit code, output, seconds. One that is not done by the deadline is ended, with exit code -9; after the
        deadline none is started."""
        start = time.monotonic()
        if start >= self.until_s:
            return -signal.SIGKILL, "not started: the time for all checks is over", 0.0
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "ELASTIC_DGC_FAULTS": faults},
        )  # fmt: skip
        # the whole session: Ray's processes, too, must not outlive a command that hangs
        timer = threading.Timer(self.until_s - start, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if stop_at is not None and stop_at in line:
                process.terminate()
                stop_at = None
        code = process.wait()
        timer.cancel()
        return code, "".join(lines), time.monotonic() - start

    def say(self, what: str, passed: bool | None, text: str, **figures: Any) -> None:
        """`passed`: None where it was left out."""
        click.echo(f"{'SKIP' if passed is None else 'PASS' if passed else 'FAIL'}  {what}: {text}")
        self.results.append({"check": what, "passed": passed, "text": text, **figures})

    def train(
        self, what: str, name: str, workers: int, digest: str | None, precision: Precision = "fp32", **how: Any
    ) -> dict[str, Any] | None:
        """One run to its end; passes if it ends well, on the device, with this digest (None: any). Returns its
        report."""
        code, output, wall_s = self.run(self.command(name, workers, precision=precision), **how)
        if code != 0:
            self.say(what, False, f"exit code {code} after {wall_s:.0f} s: {_last_lines(output)}")
            return None
        report: dict[str, Any] = json.loads(self.report(name).read_text())
        wrong = []
        if report["device"] != self.device:
            wrong.append(f"it ran on {report['device']}")
        if digest is not None and report["digest"] != digest:
            wrong.append(f"expected {digest}")
        text = (
            f"digest {report['digest']}, accuracy {report['test_accuracy']:.2%}, {report['steps']} steps in "
            f"{report['seconds']:.1f} s ({wall_s:.0f} s with Ray), {report['restarts']} restarts, "
            f"{report['skipped_steps']} skipped"
        )
        kept = ("digest", "test_accuracy", "steps", "seconds", "images_per_s", "restarts", "resumed_from_step",
                "skipped_steps")  # fmt: skip
        self.say(what, not wrong, "; ".join([text, *wrong]), wall_s=wall_s, **{name: report[name] for name in kept})
        return report

    def all(self) -> bool:
        """Every check in turn; whether none failed."""
        for precision in PRECISIONS:
            if self._wanted(precision):
                self._check(precision)
        return all(result["passed"] is not False for result in self.results)

    def _wanted(self, precision: Precision) -> bool:
        if self.precisions is not None and precision not in self.precisions:
            return False
        try:
            slow = check(precision, torch.device(self.device))
        except UsageError as error:
            self.say(precision, None, str(error))
            return False
        if slow is not None and self.precisions is None:
            self.say(precision, None, f"{slow}; --precisions {precision} checks it")
            return False
        return True

    def _check(self, precision: Precision) -> None:
        one = self.train(f"{precision}, one worker", f"{precision}-one", 1, None, precision)
        if one is None:
            return
        if self.epochs >= FULL_EPOCHS:
            reached = one["test_accuracy"] >= ACCURACY
            self.say(f"{precision}, accuracy", reached, f"at least {ACCURACY:.0%} is wanted")
        digest = one["digest"]
        self.train(f"{precision}, two workers", f"{precision}-two", 2, digest, precision)
        if precision == "fp32":
            self._disturbed(digest)

    def _disturbed(self, digest: str) -> None:
        killed = self.train("a killed worker", "killed", 2, digest, faults=json.dumps(KILL))
        if killed is not None:
            self.say("the kill took place", killed["restarts"] >= 1, f"{killed['restarts']} restarts")
        self._resume(digest)

    def _resume(self, digest: str) -> None:
        # a checkpoint at every step makes the run slow enough to be stopped before it ends
        command = self.command("resumed", 2, "--checkpoint-every-s", "0")
        code, output, wall_s = self.run(command, stop_at="epoch 1 of ")
        self.say("stopped on the way", code == STOPPED, f"exit code {code} after {wall_s:.0f} s, {_last_lines(output)}")
        if code == STOPPED:
            resumed = self.train("resumed", "resumed", 2, digest)
            if resumed is not None:
                step = resumed["resumed_from_step"]
                self.say("the resume took place", bool(step), f"from step {step}")


def _last_lines(output: str) -> str:
    return " / ".join(line.strip() for line in output.splitlines()[-3:] if line.strip())


def choose(device: str) -> str:
    """'cuda' where there is one and it was not declined."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def describe(device: str) -> dict[str, Any]:
    """What is checked, for the report."""
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "cores": os.cpu_count()}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--epochs", default=FULL_EPOCHS, show_default=True, help="Fewer only test this script; at least 3.")
@click.option("--deadline-s", default=DEADLINE_S, show_default=True, help="What is not done by then has failed.")
@click.option("--precisions", help="Such as fp32,bf16; by default those that the device computes in hardware.")
@click.option("--json", "to", help="Write the report to this file.")
def main(device: str, epochs: int, deadline_s: float, precisions: str | None, to: str | None) -> None:
    if epochs < 3:
        raise click.UsageError(f"epochs = {epochs}: at least 3 are needed to stop a run on the way")
    asked = None if precisions is None else precisions.split(",")
    unknown = sorted(set(asked or ()) - set(PRECISIONS))
    if unknown:
        raise click.UsageError(f"precisions = {precisions!r}: {unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    wanted = None if asked is None else tuple(one for one in PRECISIONS if one in asked)
    chosen = choose(device)
    if chosen == "cuda" and not torch.cuda.is_available():
        raise click.UsageError(
            f"device = cuda: torch {torch.__version__} finds no GPU here; --device cpu tests the rest"
        )
    machine = describe(chosen)
    click.echo(", ".join(f"{name} {value}" for name, value in machine.items()))
    if chosen == "cpu":
        click.echo("this checks the CPU; it says nothing about GPUs")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="device_check-") as folder:
        check = Check(chosen, epochs, Path(folder), start + deadline_s, wanted)
        passed = check.all()
    seconds = time.monotonic() - start
    click.echo(f"{'PASS' if passed else 'FAIL'}  device_check on {chosen} in {seconds:.0f} s")
    if to is not None:
        text = json.dumps({"passed": passed, "seconds": seconds, **machine, "checks": check.results}, indent=1) + "\n"
        Path(to).write_text(text)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
