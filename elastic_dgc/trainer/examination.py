"""When skipping is no help: what is wrong with the state itself, found by all workers together, in one order.

Between attempts everything is finite (R1), so whatever is found here is memory that forgot, or a hand that wrote. What
has an equal elsewhere is put back from there; what has not is an error that names it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import torch

from elastic_dgc.keeping.serialize import pack, unpack
from elastic_dgc.precision.finite import first_non_finite
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.state import OwnedState, copy_all
from elastic_dgc.trainer.group import Group


@dataclass(frozen=True)
class Findings:
    """What is not finite, in words: `shared` by worker, `buffers` and `residuals` by virtual worker. The same on all
    workers."""

    shared: dict[int, str]
    buffers: dict[int, str]
    residuals: dict[int, str]

    @property
    def fatal(self) -> str | None:
        """What nothing can be put in the place of, or None."""
        if self.shared:
            worker, text = min(self.shared.items())
            return f"{text} on worker {worker}"
        return None


def examine(group: Group, replica: Replica) -> Findings:
    """Look at parameters and optimizer state, buffers, u and v, of everyone. Entered by all workers alike."""
    owned = {str(k): [replica.first_bad(one.buffers), _residual(one)] for k, one in replica.owned.items()}
    told = group.gather({"shared": first_non_finite(replica.export_shared()[0]), "owned": owned}, "diagnosis")
    by_k = {int(k): value for one in told for k, value in sorted(one["owned"].items())}
    return Findings(
        {rank: one["shared"] for rank, one in enumerate(told) if one["shared"] is not None},
        {k: value[0] for k, value in sorted(by_k.items()) if value[0] is not None},
        {k: value[1] for k, value in sorted(by_k.items()) if value[1] is not None},
    )


def heal(group: Group, replica: Replica, found: Findings) -> list[str]:
    """Mend what can be: buffers are taken from the next virtual worker whose are finite, entries of u and v that are
    not finite become zero. Entered by all workers alike. Returns what was done, in words; changes owned state."""
    done = []
    healthy = [k for k in range(group.members.virtual_workers) if k not in found.buffers]
    if found.buffers and healthy:
        donors = {k: min(healthy, key=lambda other: (other - k) % group.members.virtual_workers) for k in found.buffers}
        own = {str(k): _text(replica.owned[k]) for k in sorted(set(donors.values())) if k in replica.owned}
        given = {int(k): text for one in group.gather(own, "healing") for k, text in one.items()}
        for k, donor in donors.items():
            if k in replica.owned:
                copy_all(replica.owned[k].buffers, unpack(base64.b64decode(given[donor]))[0], f"virtual worker {k}")
            done.append(f"buffers of virtual worker {k} ({found.buffers[k]}) taken from virtual worker {donor}")
    for k, text in found.residuals.items():
        if k in replica.owned:
            _clean(replica.owned[k])
        done.append(f"residual of virtual worker {k}: {text}, set to zero")
    return done


def _residual(one: OwnedState) -> str | None:
    return first_non_finite({name: value for name, value in one.export()[0].items() if name.startswith(("u/", "v/"))})


def _text(one: OwnedState) -> str:
    return base64.b64encode(pack(one.buffers, {})).decode()


@torch.no_grad()
def _clean(one: OwnedState) -> None:
    for vector in (one.u, one.v):
        if vector is not None:
            vector.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
