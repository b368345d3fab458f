"""A fingerprint of a user's code, so that a resumed run can say that it changed."""

from __future__ import annotations

import ast
import hashlib
import inspect
from pathlib import Path

from elastic_dgc.tasks.task import Task

_PACKAGE = __name__.split(".", 1)[0]


def code_fingerprint(task: Task) -> str | None:
    """16 hex digits of the file that the task's class stands in, or of the class alone where there is no file (a
    notebook). Comments, layout and what stands under `if __name__ == "__main__"` do not count. None for the package's
    own tasks, and where there is no source. Called by the driver; what the file imports is not looked at."""
    kind = type(task)
    if kind.__module__.split(".", 1)[0] == _PACKAGE:
        return None
    try:
        tree = ast.parse(_source(kind))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    tree.body = [node for node in tree.body if not _is_main(node)]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def _source(kind: type) -> str:
    try:
        return Path(inspect.getfile(kind)).read_text()
    except (OSError, TypeError, ValueError):
        return inspect.cleandoc(inspect.getsource(kind))


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
