"""Every error a user can meet, each with the exit code its command ends with.

A message is one line that names the value, the place and the mend. Anything that is not one of these is a bug.
"""

from __future__ import annotations


class ElasticDGCError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(ElasticDGCError):
    """The request itself is wrong: an unknown name, a value out of range, fields that contradict each other."""

    exit_code = 2


class DataError(ElasticDGCError):
    """The data set cannot be used as it is: a missing column, a corrupt image, a label out of range."""


class StorageError(ElasticDGCError):
    """The storage cannot be read, written or shared."""


class FileMissing(StorageError):
    """A file is not there: the storage itself works."""


class DamagedCheckpoint(StorageError):
    """A checkpoint's file is missing, shortened or has other bytes than its manifest says."""


class RunIsLive(ElasticDGCError):
    """The same run is being trained right now by somebody else."""


class Fenced(ElasticDGCError):
    """A newer view was claimed: this group of workers is the past and must stop without writing."""


class MessageError(ElasticDGCError):
    """Bytes that arrived are not what their format promises."""


class Unreplayable(ElasticDGCError):
    """Owned state cannot be replayed from the log: the settings do not allow it, or this machine computes otherwise."""


class ProtocolError(ElasticDGCError):
    """Somebody said what the protocol of membership rules out: a defect, told before it can do harm."""


class PeerLost(ElasticDGCError):
    """A peer's connection ended, or it kept silent past its deadline. `rank` is the peer."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[PeerLost], tuple[str, int]]:
        return type(self), (str(self), self.rank)  # Ray carries errors between processes


class Disagreement(ElasticDGCError):
    """Workers that must be equal are not: the attempt, the settings or the bytes of shared state differ."""


class Diverged(ElasticDGCError):
    """Too many attempts in a row were skipped, or state that is to be saved is not finite. The message is the
    diagnosis."""


class CompressionOff(ElasticDGCError):
    """`require_compression` was asked for, and more bytes were packed than format and density promise."""


class TaskFailed(ElasticDGCError):
    """The user's own code raised. The original exception is the `__cause__` where it could be carried over."""


class Stopped(ElasticDGCError):
    """The run was asked to stop and did, with its state saved."""

    exit_code = 130


def error_named(name: str) -> type[ElasticDGCError]:
    """The class of an error that was told of by name, from another process: one of ours that a text alone can make,
    else the base of all (a user's or Python's own)."""
    classes = [ElasticDGCError]
    for one in classes:
        classes.extend(one.__subclasses__())
    return next((one for one in classes if one.__name__ == name and one is not PeerLost), ElasticDGCError)
