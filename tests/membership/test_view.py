"""Views are claimed once each, in order, by however many try."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elastic_dgc.errors import StorageError
from elastic_dgc.keeping.storage import LocalStorage
from elastic_dgc.keeping.storage_base import Names
from elastic_dgc.membership.view import ViewRecord, claim_view, history, latest_number, latest_view


def claim(storage: LocalStorage, workers: int = 2, resumed_from: int | None = None) -> ViewRecord:
    return claim_view(
        storage, run="digits/run-0001", workers=workers, started_unix_s=1.5, resumed_from=resumed_from, hosts=["a", "b"]
    )


def test_views_are_numbered_from_one_and_remembered(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert (latest_view(storage), latest_number(storage), history(storage)) == (None, 0, [])
    first, second = claim(storage), claim(storage, 3, resumed_from=40)
    assert first == ViewRecord(1, "digits/run-0001", 2, 1.5, None, ("a", "b"))
    assert (latest_view(storage), history(storage)) == (second, [first, second])


def test_everyone_who_claims_at_once_gets_a_number_of_his_own(tmp_path: Path) -> None:
    storage, together, got = LocalStorage(tmp_path), threading.Barrier(8), []

    def work() -> None:
        together.wait(10)
        got.append(claim(storage).number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(got) == list(range(1, 9))
    assert [view.number for view in history(storage)] == list(range(1, 9))


def test_a_listing_that_lags_behind_does_not_keep_it_from_getting_on(tmp_path: Path) -> None:
    class Lagging(LocalStorage):
        def list(self, path: str = "") -> Names:
            return []

    for _ in range(3):
        claim(LocalStorage(tmp_path))
    assert claim(Lagging(tmp_path)).number == 4


def test_being_late_for_ever_ends_with_an_error(tmp_path: Path) -> None:
    class Taken(LocalStorage):
        def create(self, path: str, data: bytes) -> bool:
            return False

    with pytest.raises(StorageError, match="others were faster 100 times"):
        claim(Taken(tmp_path))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"number": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("views/000001.json", content)
    with pytest.raises(StorageError, match=r"views/000001.json is damaged"):
        latest_view(storage)
    assert claim(storage).number == 2  # numbers go on all the same
