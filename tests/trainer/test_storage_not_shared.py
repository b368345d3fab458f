"""A storage that not every node shares is found out before training starts: private mounts make two nodes of one."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import groups
import pytest

from elastic_dgc.trainer.job import Job

pytestmark = pytest.mark.processes

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def hide(path: str) -> None:
    """Give this process an empty file system of its own at `path`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, None),
    ):
        if call() != 0:
            raise PermissionError(os.strerror(ctypes.get_errno()))


def work_apart(job: Job, rank: int, size: int, pipe: Any) -> None:
    if rank == 1:
        hide(job.run_url)
    _work(job, rank, size, pipe)


_work = groups._work


def test_a_private_storage_is_one_clear_error_on_everyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("private mounts need root")
    monkeypatch.setattr(groups, "_work", work_apart)
    job = groups.tiny_job(str(tmp_path))
    ends = groups.run_group(job, 2)
    if any("Operation not permitted" in str(end) for end in ends):
        pytest.skip("this machine does not allow private mounts")
    for end in ends:
        assert end[:2] == ("raised", "StorageError"), ends
        assert "is not shared: worker 1 does not see what worker 0 wrote there" in end[2]
        assert "choose a --storage that every node reaches" in end[2]
