"""Durable checkpoints by a group: each worker writes what it owns, worker 0 what is shared, the manifest comes last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from elastic_dgc.errors import DamagedCheckpoint, Diverged, ElasticDGCError, MessageError, StorageError
from elastic_dgc.keeping import checkpoint
from elastic_dgc.keeping.checkpoint import Manifest, Part
from elastic_dgc.keeping.serialize import pack, unpack
from elastic_dgc.keeping.storage import Storage
from elastic_dgc.log import logger
from elastic_dgc.step.replica import Replica
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.healing import Agreement

SHARED = "shared.safetensors"
PROBE = "probe"


def owned_name(virtual_worker: int) -> str:
    return f"owned-{virtual_worker:05d}.safetensors"


class Checkpoints:
    """The run's durable checkpoints, as one worker of a group sees them. `agreement` is the check before each."""

    def __init__(
        self, storage: Storage, group: Group, replica: Replica, run: str, keep: int, agreement: Agreement | None = None
    ) -> None:
        self._storage, self._group, self._replica, self._run, self._keep = storage, group, replica, run, keep
        self.agreement = agreement or Agreement(group, replica)

    def save(self, meta: Callable[[], dict[str, Any]]) -> str:
        """Write one at this boundary, on all workers together. Returns where it lies.

        Only what is finite and equal everywhere is written (R1, R2). Raises on everyone alike: `Diverged`,
        `Disagreement`, `StorageError`; the checkpoints there before are untouched. `meta()` is called on worker 0.
        """
        group, attempt = self._group, self._replica.counters.attempt
        self.agreement.check("before a checkpoint")
        parts = group.together("checkpoint", self._write)
        told = group.gather([asdict(part) for part in parts], "checkpoint")
        everyone = [Part(**one) for worker in told for one in worker]
        group.fault("checkpoint")

        def commit() -> None:
            if group.leads:
                group.fault("manifest")
                done = checkpoint.commit(self._storage, group.view, attempt, everyone, meta(), run=self._run)
                checkpoint.rotate(self._storage, self._keep, done, group.view)

        group.together("checkpoint", commit)
        self.agreement.verified = self._told(group.view, attempt)
        return self._storage.url(checkpoint.directory(group.view, attempt))

    def _write(self) -> list[Part]:
        group, replica = self._group, self._replica
        files = {owned_name(k): one.export() for k, one in sorted(replica.owned.items())}
        if group.leads:
            files[SHARED] = replica.export_shared()
        for name, (tensors, _) in files.items():
            bad = replica.first_bad(tensors, "buffer/")
            if bad is not None:
                raise Diverged(f"checkpoint not written: {name.split('.')[0]} holds {bad}")
        attempt = replica.counters.attempt
        return [
            checkpoint.write_part(self._storage, group.view, attempt, name, pack(tensors, fields))
            for name, (tensors, fields) in files.items()
        ]

    def load_newest(self) -> Manifest | None:
        """Load the newest complete checkpoint whose every file is whole, on all workers the same one; None where
        there is none. A damaged one is named and passed over. Raises `StorageError`, also where all are damaged."""
        group = self._group
        number, tried = 0, 0
        while True:
            found = group.together("reading checkpoints", lambda: checkpoint.manifests(self._storage))
            if group.leads and tried == 0:
                for problem in found[1]:
                    logger(worker=0).warning("%s", problem)
            listed = group.gather([[one.view, one.attempt] for one in found[0]], "reading checkpoints")[0]
            if number >= len(listed):
                if tried:
                    raise DamagedCheckpoint(
                        f"all {tried} checkpoints in {self._storage.url('checkpoints')} are damaged: "
                        f"restore one from a copy, or start over under another --name"
                    )
                return None
            view, attempt = listed[number]
            chosen = next((one for one in found[0] if (one.view, one.attempt) == (view, attempt)), None)
            told = [text for text in group.gather(self._load(chosen), "reading checkpoints") if text is not None]
            if not told:
                self.agreement.verified = self._told(view, attempt)
                return chosen
            if group.leads:
                logger(worker=0).warning("checkpoint of attempt %d passed over: %s", attempt, told[0])
            number, tried = number + 1, tried + 1

    def _told(self, view: int, attempt: int) -> str:
        return f"attempt {attempt} in {self._storage.url(checkpoint.directory(view, attempt))}"

    def _load(self, chosen: Manifest | None) -> str | None:
        """Load everything that belongs here; returns what is wrong, and then nothing here is to be used."""
        if chosen is None:
            return f"worker {self._group.members.rank} does not see it: is the storage shared by all nodes?"
        try:
            self._replica.load_shared(*unpack(checkpoint.read_part(self._storage, chosen, SHARED)))
            for k, one in self._replica.owned.items():
                one.load(*unpack(checkpoint.read_part(self._storage, chosen, owned_name(k))))
        except (DamagedCheckpoint, MessageError) as error:
            return str(error)
        return None


def prove_shared(storage: Storage, group: Group, token: str) -> None:
    """Prove before training that every node sees the same storage: worker 0 writes, everyone reads.

    Raises `StorageError` on everyone, naming the worker and the mend.
    """
    name = f"{PROBE}/{group.view:06d}"

    def write() -> None:
        if group.leads:
            storage.write(name, token.encode())

    group.together("checking the storage", write)
    expected = group.gather(token, "checking the storage")[0]
    problem = None
    try:
        if storage.read(name).decode() != expected:
            problem = "holds another run's file"
    except ElasticDGCError as error:
        problem = str(error)
    told = group.gather(problem, "checking the storage")
    bad = [(rank, text) for rank, text in enumerate(told) if text is not None]
    group.together("checking the storage", lambda: storage.delete(PROBE) if group.leads else None)
    if bad:
        raise StorageError(
            f"storage {storage.url()} is not shared: worker {bad[0][0]} does not see what worker 0 wrote there "
            f"({bad[0][1]}); choose a --storage that every node reaches, such as NFS or s3://"
        )
