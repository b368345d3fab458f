"""What the same command does, and that a run's directory is claimed once and says what it was begun with."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_dgc.errors import StorageError, UsageError
from elastic_dgc.keeping.storage import LocalStorage
from elastic_dgc.keeping.storage_base import Names
from elastic_dgc.membership.runs import (
    RunDirectory,
    Start,
    Status,
    decide,
    mismatch,
    read_result,
    record_result,
)

IDENTITY = {"virtual_workers": 4, "seed": 1, "data": {"path": "/d", "size": (8, 8)}}


def create(storage: LocalStorage, epochs: int = 3) -> RunDirectory:
    return RunDirectory.create(
        storage, "digits", identity=IDENTITY, epochs=epochs, settings={"lr": 0.1}, versions={"torch": "2"}
    )


def test_a_run_goes_from_new_to_unfinished_to_finished_to_extended(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    none = RunDirectory.find(storage, "digits")
    assert (none.status, none.number) == (Status.NEW, 0)
    with pytest.raises(ValueError, match="no run of the name 'digits'"):
        _ = none.files
    made = create(storage)
    found = RunDirectory.find(storage, "digits")
    assert (found.status, found.place, found.epochs) == (Status.UNFINISHED, "digits/run-0001", 3)
    assert (found.settings, found.versions) == ({"lr": 0.1}, {"torch": "2"})
    assert mismatch(found.identity, IDENTITY) == []
    assert read_result(made.files) is None
    record_result(made.files, {"state": "finished", "epochs": 3, "digest": "ab"})
    assert RunDirectory.find(storage, "digits").status is Status.FINISHED
    found.extend(5)
    again = RunDirectory.find(storage, "digits")
    assert (again.status, again.epochs, again.number) == (Status.UNFINISHED, 5, 1)
    assert create(storage).place == "digits/run-0002"
    assert RunDirectory.find(storage, "other").status is Status.NEW


def test_a_claim_that_was_interrupted_or_lost_is_no_run(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "digits" / "run-0001").mkdir(parents=True)
    assert RunDirectory.find(storage, "digits").status is Status.NEW
    assert create(storage).number == 1

    class Behind(LocalStorage):
        def list(self, path: str = "") -> Names:
            return []

    assert create(Behind(tmp_path)).number == 2  # somebody else took 1 in between


@pytest.mark.parametrize(
    ("status", "old_epochs", "new_epochs", "expected"),
    [
        (Status.NEW, 0, 3, Start.NEW),
        (Status.UNFINISHED, 3, 3, Start.RESUME),
        (Status.UNFINISHED, 3, 5, Start.RESUME),
        (Status.FINISHED, 3, 3, Start.AFRESH),
        (Status.FINISHED, 3, 2, Start.AFRESH),
        (Status.FINISHED, 3, 5, Start.EXTEND),
    ],
)
def test_the_same_command(status: Status, old_epochs: int, new_epochs: int, expected: Start) -> None:
    assert decide(status, IDENTITY, IDENTITY, old_epochs, new_epochs) is expected


def test_every_difference_is_listed_with_the_mend() -> None:
    other = {"virtual_workers": 8, "data": {"path": "/d", "size": [8, 9]}, "threads": 1}
    differences = [
        "data.size: [8, 8] there, [8, 9] asked for",
        "seed: 1 there, not set asked for",
        "threads: not set there, 1 asked for",
        "virtual_workers: 4 there, 8 asked for",
    ]
    assert mismatch(IDENTITY, other) == differences
    for status in (Status.UNFINISHED, Status.FINISHED):
        with pytest.raises(UsageError) as caught:
            decide(status, IDENTITY, other, 3, 3)
        assert "; ".join(differences) in str(caught.value)
        assert "another --name" in str(caught.value)
    assert decide(Status.NEW, {}, other, 0, 3) is Start.NEW


def test_an_unfinished_run_cannot_be_shortened() -> None:
    with pytest.raises(UsageError, match="epochs: 5 there, 3 asked for"):
        decide(Status.UNFINISHED, IDENTITY, IDENTITY, 5, 3)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 101])
def test_a_name_is_a_plain_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        RunDirectory.find(LocalStorage(tmp_path), name)


def test_records_that_make_no_sense_are_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for content, said in [(b"{", "damaged"), (b"{}", "damaged"), (b'{"format": 2}', "format 2, this version reads 1")]:
        storage.write("digits/run-0001/run.json", content)
        with pytest.raises(StorageError, match=rf"run-0001/run.json.* {said}|run.json is {said}"):
            RunDirectory.find(storage, "digits")
    storage.delete("digits")
    made = create(storage)
    made.files.write("result.json", b"3")
    with pytest.raises(StorageError, match=r"result.json is damaged.*delete it"):
        RunDirectory.find(storage, "digits")


def test_what_is_not_finite_is_null_in_the_result(tmp_path: Path) -> None:
    made = create(LocalStorage(tmp_path))
    record_result(made.files, {"state": "finished", "epochs": 1, "test": {"loss": float("nan")}, "all": [float("inf")]})
    assert read_result(made.files) == {"state": "finished", "epochs": 1, "test": {"loss": None}, "all": [None]}
