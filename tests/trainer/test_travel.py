"""A task on its way to the workers: what cannot be sent, what cannot be imported there, and how an error comes back."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from groups import TinyTask, tiny_job

from elastic_dgc.errors import DataError, ElasticDGCError, TaskFailed, UsageError
from elastic_dgc.trainer.elastic import ElasticTrainer
from elastic_dgc.trainer.travel import packed, unpacked
from elastic_dgc.trainer.users_code import users_code


def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> dict[str, Any]:
    """A job whose task stands in a module of the user's, which is forgotten again."""
    (tmp_path / "users_task.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users_task", raising=False)
    import users_task

    config = packed(tiny_job(str(tmp_path / "runs"), task=users_task.Own()))
    monkeypatch.delitem(sys.modules, "users_task")
    return config


TASK = "from groups import TinyTask\n\n\nclass Own(TinyTask):\n    pass\n"


def test_a_job_arrives_as_it_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = sent(tmp_path, monkeypatch, TASK)
    job = unpacked(config, "worker 0 on a")
    assert type(job.task).__name__ == "Own"
    assert job.driver == config["driver"]


def test_a_module_that_is_not_on_the_worker_is_named_with_the_drivers_file_and_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sent(tmp_path, monkeypatch, TASK)
    (tmp_path / "users_task.py").unlink()
    with pytest.raises(TaskFailed) as error:
        unpacked(config, "worker 1 on b")
    assert str(error.value).startswith(
        f"worker 1 on b cannot import the task users_task.Own, which the driver has from {tmp_path}/users_task.py: "
        f"ModuleNotFoundError: No module named 'users_task'; install it on every node"
    )
    assert "--working-dir" in str(error.value)


def test_what_the_users_module_imports_in_vain_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sent(tmp_path, monkeypatch, TASK)
    (tmp_path / "users_task.py").write_text("import sys\nimport not_there\n" + TASK)
    with pytest.raises(TaskFailed) as error:
        unpacked(config, "worker 1 on b")
    said = f"No module named 'not_there' (at {tmp_path}/users_task.py:2 in <module>); install it on every node"
    assert said in str(error.value)


class WithALock(TinyTask):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_task_that_cannot_be_sent_is_refused_in_one_line(tmp_path: Path) -> None:
    job = tiny_job(str(tmp_path), task=WithALock())
    with pytest.raises(
        UsageError, match=r"the task WithALock cannot be sent to the workers: TypeError: .*lock.*; open"
    ):
        packed(job)


def test_errors_of_the_users_code_get_a_place_and_the_packages_own_pass() -> None:
    with (
        pytest.raises(
            TaskFailed, match=r"worker 0 on a, reading the data: KeyError: 'x' \(at .*test_travel.py:\d+ in "
        ),
        users_code("worker 0 on a", "reading the data"),
    ):
        raise KeyError("x")
    with pytest.raises(DataError, match=r"^no such folder$"), users_code("worker 0 on a", "reading the data"):
        raise DataError("no such folder")


def shown(monkeypatch: pytest.MonkeyPatch, raised: BaseException, cause: BaseException | None) -> list[str]:
    """What Python prints where nobody catches what `fit` raises."""

    def inside(trainer: ElasticTrainer) -> None:
        try:
            raise RuntimeError("RaySystemError: a stack of Ray")
        except RuntimeError:
            raise raised from cause

    # As if it stood in the package: its frames are what is to be left out.
    code = inside.__code__.replace(co_filename=sys.modules[ElasticTrainer.__module__].__file__ or "")
    inside.__code__ = code
    monkeypatch.setattr(ElasticTrainer, "_fit", inside)
    try:
        ElasticTrainer(TinyTask()).fit()
    except (ElasticDGCError, KeyboardInterrupt) as error:
        return "".join(traceback.format_exception(error)).splitlines()
    raise AssertionError


def test_an_uncaught_error_ends_in_its_line_with_nothing_of_ours_above(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, DataError("/d: no such folder"), OSError("inside"))
    assert lines[-1] == "elastic_dgc.errors.DataError: /d: no such folder"
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")] == ["shown", "fit"]
    assert not [line for line in lines if "Ray" in line or "OSError" in line]


def test_ctrl_c_before_there_are_workers_is_short_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, KeyboardInterrupt(), None)
    assert lines[-1].startswith("KeyboardInterrupt: stopped at once; the same command goes on from the last checkpoint")
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")] == ["shown", "fit"]


def test_the_users_own_exception_stays_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, TaskFailed("IndexError: 3 (virtual worker 0)"), IndexError(3))
    assert lines[0] == "IndexError: 3"
    assert lines[-1] == "elastic_dgc.errors.TaskFailed: IndexError: 3 (virtual worker 0)"
    assert not [line for line in lines if "RuntimeError" in line]
