"""The fingerprint of a user's code: what changes it, and what does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from elastic_dgc.tasks.code import code_fingerprint
from elastic_dgc.tasks.image import ImageClassification
from elastic_dgc.tasks.task import Task

SOURCE = """
from elastic_dgc.tasks.task import Task

def scale(x):
    return 2 * x

class Mine(Task):
    def model(self): ...
    def train_data(self): ...
    def loss(self, model, batch):
        return scale(model(batch).mean())

if __name__ == "__main__":
    print("epochs 5")
"""


def fingerprint(folder: Path, source: str) -> str | None:
    file = folder / "mine.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["mine"] = module
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
        return code_fingerprint(module.Mine())
    finally:
        del sys.modules["mine"]


def test_the_code_counts_and_comments_and_the_main_part_do_not(tmp_path: Path) -> None:
    before = fingerprint(tmp_path, SOURCE)
    assert before is not None
    assert fingerprint(tmp_path, SOURCE.replace("epochs 5", "epochs 9") + "# note\n") == before
    assert fingerprint(tmp_path, SOURCE.replace("2 * x", "3 * x")) != before
    assert fingerprint(tmp_path, SOURCE.replace(".mean()", ".sum()")) != before


def test_tasks_of_the_package_have_none_and_a_class_without_source_neither() -> None:
    assert code_fingerprint(ImageClassification()) is None
    made: dict[str, Any] = {"__name__": "nowhere"}
    exec(SOURCE, made)
    assert code_fingerprint(made["Mine"]()) is None


def test_a_class_made_in_a_function_is_the_same_task_in_another_process() -> None:
    """cloudpickle names it without the function."""

    class Inner(ImageClassification):
        pass

    there = type("Inner", (Inner,), {"__qualname__": "Inner", "__module__": Inner.__module__})
    task, sent = Inner.__new__(Inner), there.__new__(there)
    assert Task.identity(task) == Task.identity(sent)
    assert Task.identity(task)["task"].endswith(".Inner")
