"""What the user's own code raises on a worker before the first attempt, in one line with its place. Knows no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elastic_dgc.errors import ElasticDGCError, TaskFailed
from elastic_dgc.step.compute import place_of, said_by

IMPORT_MEND = (
    "install it on every node, put it beside the script, or send it along: `ray job submit --working-dir DIR`, or "
    'ray.init(runtime_env={"working_dir": DIR}) before fit()'
)


@contextmanager
def users_code(worker: str, what: str) -> Iterator[None]:
    """What the user's own code raises inside, before the first attempt, becomes a `TaskFailed` with its place: it ends
    the run, where anything unforeseen would start the group again."""
    try:
        yield
    except ElasticDGCError:
        raise
    except Exception as error:  # the user's own code may raise anything
        mend = f"; {IMPORT_MEND}" if isinstance(error, ImportError) else ""
        raise TaskFailed(f"{worker}, {what}: {told(error)}{mend}") from error


def told(error: BaseException) -> str:
    """'ModuleNotFoundError: No module named 'x' (at task.py:3 in <module>)', with the notes the exception carries."""
    place = place_of(error, users_only=True)
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", []))
    return f"{said_by(error)}{f' (at {place})' if place else ''}{notes}"
