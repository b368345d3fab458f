"""What a user sees of an error that nobody catches: its line last, above it what is theirs, and nothing of ours.

The errors of this package say all there is to know in their text. A stack of the driver's threads and of Ray above it
buries that, and is of use to nobody.
"""

from __future__ import annotations

from elastic_dgc.errors import ElasticDGCError, TaskFailed
from elastic_dgc.step.compute import is_users_frame


def shortened(error: ElasticDGCError) -> ElasticDGCError:
    """The same error, without the frames of this package and of libraries unless there are the user's own below them.
    Changes the error's traceback."""
    frames = error.__traceback__
    while frames is not None:
        if is_users_frame(frames.tb_frame.f_code.co_filename):
            return error  # raised by, or through, what the user wrote
        frames = frames.tb_next
    error.__traceback__ = None
    return error


def users_cause(error: ElasticDGCError) -> BaseException | None:
    """What is to be shown as the error's cause: the user's own exception, or nothing."""
    return error.__cause__ if isinstance(error, TaskFailed) else None
