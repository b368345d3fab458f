"""The check of a device asks for the right runs and judges them rightly; the runs themselves are others' tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from elastic_dgc.errors import UsageError
from elastic_dgc.precision.autocast import PRECISIONS


def checked(script: Any, folder: Path, precisions: tuple[str, ...] | None, digest_of: Any = None) -> tuple[bool, Any]:
    """All checks, with runs that end at once; whether all passed, and which runs there were."""
    check = script.Check("cpu", script.FULL_EPOCHS, folder, time.monotonic() + 60, precisions)
    asked: list[dict[str, str]] = []

    def run(command: list[str], *, faults: str = "[]", stop_at: str | None = None) -> tuple[int, str, float]:
        options = dict(zip(command[2::2], command[3::2], strict=True))
        asked.append(options)
        if stop_at is not None:
            return script.STOPPED, "stopped", 1.0
        report = {
            "device": "cpu", "digest": (digest_of or (lambda one: one["--precision"]))(options), "test_accuracy": 0.98,
            "steps": 345, "seconds": 1.0, "images_per_s": 1.0, "restarts": int(faults != "[]"), "skipped_steps": 0,
            "resumed_from_step": 30,
        }  # fmt: skip
        Path(options["--report"]).write_text(script.json.dumps(report))
        return 0, "", 1.0

    check.run = run
    return check.all(), (check, asked)


def test_every_precision_runs_on_one_worker_and_two(script: Any, tmp_path: Path) -> None:
    passed, (check, asked) = checked(script, tmp_path, PRECISIONS)
    assert passed
    for precision in PRECISIONS:
        workers = [one["--workers"] for one in asked if one["--precision"] == precision]
        assert workers[:2] == ["1", "2"]
        assert len(workers) == (5 if precision == "fp32" else 2)
        assert {f"{precision}, two workers", f"{precision}, accuracy"} <= {one["check"] for one in check.results}


def test_another_digest_on_two_workers_fails(script: Any, tmp_path: Path) -> None:
    passed, (check, _) = checked(
        script, tmp_path, PRECISIONS, lambda one: one["--workers"] if one["--precision"] == "fp16" else "same"
    )
    assert not passed
    assert [one["check"] for one in check.results if not one["passed"]] == ["fp16, two workers"]


def test_a_precision_that_the_device_lacks_or_computes_in_software_is_left_out(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(precision: str, device: Any) -> str | None:
        if precision == "bf16":
            raise UsageError("precision = 'bf16': this GPU has no bf16")
        return "in software" if precision == "fp16" else None

    monkeypatch.setattr(script, "check", check)
    passed, (_, asked) = checked(script, tmp_path, None)
    assert passed
    assert {one["--precision"] for one in asked} == {"fp32"}
    said = capsys.readouterr().out
    assert "SKIP  bf16: precision = 'bf16': this GPU has no bf16" in said
    assert "SKIP  fp16: in software; --precisions fp16 checks it" in said
    _, (_, asked) = checked(script, tmp_path, ("fp16",))
    assert {one["--precision"] for one in asked} == {"fp16"}
