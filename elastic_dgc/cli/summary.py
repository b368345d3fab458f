"""What is printed when a run has ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from elastic_dgc.trainer.elastic import Result


def summary(result: Result, command: Sequence[str]) -> list[str]:
    """The lines of the result, in a form that is easy to read and to grep."""
    report = result.report
    accuracy = report["test_accuracy"]
    lines = [
        ("run", result.name),
        ("test accuracy", "no test data" if accuracy is None else f"{accuracy:.2%}"),
        ("steps", f"{report['steps']} applied, {report['skipped_steps']} skipped, {report['restarts']} restarts"),
        (
            "bytes sent",
            f"{_bytes(report['upload_bytes'])} against {_bytes(report['dense_bytes'])} dense "
            f"({report['upload_ratio']:.1f} times less over the whole run, warm-up included)",
        ),
        ("on the wire", f"{_bytes(report['wire_bytes'])} by all workers, both directions"),
        ("residual norm", f"{report['residual_norm']:.6g}"),
        ("digest", report["digest"]),
        ("checkpoints", report["checkpoints"]),
        ("model file", report["model"]),
        ("TensorBoard", f"tensorboard --logdir {shlex.quote(report['tensorboard'])}"),
        ("go on", resume_command(report["epochs"], result.name, command)),
    ]
    width = max(len(name) for name, _ in lines)
    return [f"{name + ':':<{width + 1}} {text}" for name, text in lines]


def resume_command(epochs: int, name: str, command: Sequence[str]) -> str:
    """The same command with more epochs: what goes on with a finished run."""
    kept, skip = [], False
    for word in command[1:]:
        if skip or word.startswith(("--epochs=", "--name=")):
            skip = False
        elif word in ("--epochs", "--name"):
            skip = True
        else:
            kept.append(word)
    program = command[0] if command[0].endswith(".py") else "elastic-dgc"
    words = [*(["python"] if program.endswith(".py") else []), program, *kept, "--name", name, "--epochs"]
    return f"{shlex.join(words)} {epochs + 5}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
