"""What is printed when a run has ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from elastic_dgc.trainer.elastic import Result
from elastic_dgc.trainer.words import count

LESS = 1.05  # a ratio above which it is worth saying that less was sent than whole gradients are


def summary(result: Result, command: Sequence[str]) -> list[str]:
    """The lines of the result, in a form that is easy to read and to grep."""
    report = result.report
    accuracy = report["test_accuracy"]
    lines = [
        ("run", result.name),
        ("test accuracy", "no test data" if accuracy is None else f"{accuracy:.2%}"),
        (
            "steps",
            f"{report['steps']} applied, {report['skipped_steps']} skipped, {count(report['restarts'], 'restart')}",
        ),
        ("bytes sent", _sent(report)),
        ("on the wire", _wire(report)),
        ("residual norm", f"{report['residual_norm']:.6g}"),
        ("digest", report["digest"]),
        ("checkpoints", report["checkpoints"]),
        ("model file", report["model"]),
        ("TensorBoard", f"tensorboard --logdir {shlex.quote(report['tensorboard'])}"),
        ("go on", resume_command(report["epochs"], result.name, command)),
    ]
    if report["precision"] == "fp16":
        lines.insert(3, ("loss scale", f"{report['loss_scale']:g} at the end, in fp16"))
    if report["healed"]:
        lines.insert(
            3, ("healed", f"{count(report['healed'], 'part')} of the state: finite or equal again, not undisturbed")
        )
    corrupt = report["corrupt_samples"]
    if corrupt:
        lines.insert(3, ("corrupt", f"{count(corrupt, 'sample')} left out"))
    for what in ("audit", "report"):
        if report.get(f"{what}_file"):
            lines.insert(-1, (what, report[f"{what}_file"]))
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


def _sent(report: dict[str, Any]) -> str:
    sent, ratio = _bytes(report["upload_bytes"]), report["upload_ratio"]
    if ratio < LESS:
        return f"{sent}, whole gradients"
    dense = _bytes(report["dense_bytes"])
    over = "over the whole run, warm-up included" if report["exchange"] == "dgc" else "over the whole run"
    return f"{sent} against {dense} dense ({ratio:.1f} times less {over})"


def _wire(report: dict[str, Any]) -> str:
    if not report["wire_bytes"]:
        return "nothing, one worker"
    return f"{_bytes(report['wire_bytes'])} by all workers, both directions"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
