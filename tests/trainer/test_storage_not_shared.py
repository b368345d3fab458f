"""A storage that not every node shares is found out before training starts: private mounts make two nodes of one."""

from __future__ import annotations

import os
from pathlib import Path

import groups
import pytest
from mischief import work_apart

pytestmark = pytest.mark.processes


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
