"""What goes wrong between workers and under them, in one line each that names value, place and mend: a backend that
is missing, a type that it does not carry, other versions, a port in use, a firewall."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import groups
import pytest
import ray
import torch
import torch.distributed as dist
from groups import run_group, tiny_job
from mischief import WithAnOddBuffer, work_with_another_torch
from simulation import SmallNet, settings
from torch.nn.parallel import DistributedDataParallel as DDP
from transports import RUN, SECRET

from elastic_dgc.ddp.checks import check_model
from elastic_dgc.errors import Disagreement, ElasticDGCError, PeerLost, UsageError
from elastic_dgc.exchange import frame, handshake
from elastic_dgc.exchange.collectives import need_backend, open_gloo, open_store
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.keeping.serialize import check_types
from elastic_dgc.step.replica import Replica
from elastic_dgc.trainer import cluster
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.versions import agree_on_versions, versions

pytestmark = pytest.mark.processes
HERE = "127.0.0.1"


def join(addresses: Sequence[Any], own: Listener, rank: int, deadline_s: float = 20.0) -> TcpTransport:
    return TcpTransport(own, rank, addresses, RUN, 1, SECRET, connect_deadline_s=deadline_s)


def in_a_group(size: int, do: Callable[[Group], Any]) -> list[Any]:
    """What `do` returns on every worker of a group, or the error of ours that it raises."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(Listener(HERE)) for _ in range(size)]
        addresses = [one.address for one in listeners]

        def worker(rank: int) -> Any:
            with join(addresses, listeners[rank], rank) as transport:
                try:
                    return do(Group(Members.of(rank, size, 4), transport, 1, 20.0))
                except ElasticDGCError as error:
                    return error

        with ThreadPoolExecutor(size) as pool:
            return [one.result(timeout=60) for one in [pool.submit(worker, rank) for rank in range(size)]]


# ---- backends


@pytest.mark.parametrize(
    ("name", "device", "lacking", "said"),
    [
        ("nccl", "cuda", "is_nccl_available", r"backend 'nccl': torch \S+ was built without it; use gloo, which takes"),
        ("gloo", "cpu", "is_gloo_available", r"backend 'gloo': torch \S+ was built without it; install one from"),
        ("gloo", "cpu", "is_available", r"backend 'gloo': torch \S+ was built without torch\.distributed; install"),
        ("nccl", "cpu", None, r"backend 'nccl' carries tensors on GPUs only, these are on the cpu; use gloo"),
        ("tcp", "cpu", None, r"backend = 'tcp' is not known here; use gloo, or nccl"),
    ],
)
def test_a_backend_that_is_missing_is_named_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, lacking: str | None, said: str
) -> None:
    if lacking is not None:
        monkeypatch.setattr(dist, lacking, lambda: False)
    with pytest.raises(UsageError, match=said):
        need_backend(name, device)


def test_nccl_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"backend 'nccl': torch \S+ finds no GPU here .*; use gloo"):
        need_backend("nccl", "cuda")


def test_without_gloo_a_group_goes_on_by_frames(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    for opening in (lambda: open_store(HERE, 1.0), lambda: open_gloo((HERE, 1), HERE, 0, 2, 1, 1.0)):
        with pytest.raises(RuntimeError, match=r"backend 'gloo': torch .* was built without it"):
            opening()

    def learn(group: Group) -> Any:
        group.learn_link((HERE, HERE), "collectives", (HERE, 5.0))
        return type(group.transport).__name__, group.gather(group.members.rank, "testing")

    assert in_a_group(2, learn) == [("TcpTransport", [0, 1])] * 2
    warned = [one.getMessage() for one in caplog.records if "no library collectives" in one.getMessage()]
    assert any("everything goes by frames: worker 0: backend 'gloo': torch" in one for one in warned)


def test_a_hook_on_nccl_needs_gloo_for_its_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = DDP(torch.nn.Linear(2, 2))
        check_model(model)
        monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
        monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
        with pytest.raises(UsageError, match=r"DDP's backend is cuda:nccl, .* go by gloo: torch \S+ was built without"):
            check_model(model)
    finally:
        dist.destroy_process_group()


# ---- types


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_parameters_that_are_not_fp32_are_named_before_anything_is_reduced(dtype: torch.dtype) -> None:
    """gloo answers `all_reduce` of float8 with 'Invalid scalar type'; of fp16 it adds up what overflows."""
    model = SmallNet()
    model.head.weight = torch.nn.Parameter(torch.zeros(4, 54).to(dtype), requires_grad=dtype.is_floating_point)
    with pytest.raises(
        UsageError, match=f"parameter 'head.weight' is {dtype}: parameters must be float32; --precision"
    ):
        Replica(model, settings(), [0])


def test_buffers_of_types_that_gloo_does_not_know_travel_and_one_that_cannot_is_named(tmp_path: Path) -> None:
    check_types({"a": torch.zeros(2, dtype=torch.uint16), "b": torch.zeros(2, dtype=torch.float8_e5m2)})
    for end in run_group(tiny_job(str(tmp_path / "complex128"), task=WithAnOddBuffer("complex128")), 2):
        assert end[:2] == ("raised", "UsageError"), end
        assert "'0.odd' is torch.complex128, which safetensors cannot hold" in end[2]
    ends = run_group(tiny_job(str(tmp_path / "uint16"), task=WithAnOddBuffer("uint16"), epochs=1), 2)
    assert [end[0] for end in ends] == ["returned"] * 2


# ---- versions


def test_workers_of_different_versions_are_named_with_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = versions()
    assert {"elastic_dgc", "torch", "numpy", "python"} <= usual.keys()
    for name in usual:
        found = in_a_group(
            3, lambda group, n=name: agree_on_versions(group, {**usual, n: "0.9"} if group.members.rank == 2 else usual)
        )
        for error in found:
            assert isinstance(error, Disagreement)
            assert f"{name} is {usual[name]} on worker 0 and 0.9 on worker 2: install the same {name}" in str(error)
    assert in_a_group(2, lambda group: agree_on_versions(group, usual)) == [None, None]
    monkeypatch.setattr(groups, "_work", work_with_another_torch)
    for end in run_group(tiny_job(str(tmp_path)), 2):
        assert end[:2] == ("raised", "Disagreement"), end
        assert f"torch is {torch.__version__} on worker 0 and 2.9.9 on worker 1" in end[2]


@pytest.mark.parametrize(("mine", "theirs"), [(1, 2), (2, 1)])
def test_another_version_of_the_protocol_ends_the_callers_wait_at_once(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, mine: int, theirs: int
) -> None:
    listeners = [stack.enter_context(Listener(HERE)) for _ in range(2)]
    monkeypatch.setattr(handshake, "VERSION", mine)

    def host_of_another_version() -> None:
        listeners[0].sock.settimeout(20.0)
        guest, _ = listeners[0].sock.accept()
        with guest:
            guest.recv(1000)
            words = handshake._MAGIC, theirs, handshake._OTHER_VERSION, 1, bytes(32), bytes(32)
            guest.sendall(handshake._ANSWER.pack(*words))

    said = f"it speaks version {theirs} of the workers' protocol, this worker version {mine}: install one version of"
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(host_of_another_version)
        with pytest.raises(Disagreement, match=rf"^rank 0 at {HERE}:\d+: {said}"):
            join([one.address for one in listeners], listeners[1], 1, deadline_s=30.0)
        host.result(timeout=20)


def test_a_host_tells_a_caller_of_another_version_why_and_waits_on(stack: ExitStack) -> None:
    """It has not proved who it is: a stranger's word ends no run."""
    listeners = [stack.enter_context(Listener(HERE)) for _ in range(2)]
    addresses = [one.address for one in listeners]
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(join, addresses, listeners[0], 0)
        with socket.create_connection(addresses[0], timeout=20.0) as sock:
            sock.sendall(handshake._HELLO.pack(handshake._MAGIC, frame.VERSION + 1, RUN, 1, 1, 0, bytes(32)))
            magic, version, verdict, *_ = handshake._ANSWER.unpack(sock.recv(1000, socket.MSG_WAITALL))
        assert (magic, version, verdict) == (handshake._MAGIC, frame.VERSION, handshake._OTHER_VERSION)
        stack.callback(join(addresses, listeners[1], 1).close)
        stack.callback(host.result(timeout=20).close)
        assert "it speaks version 2 of the workers' protocol" in host.result()._acceptor.last_refusal


def test_another_ray_on_the_cluster_is_not_called_a_missing_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.10.1\n")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"^Ray cluster at 'auto': Version mismatch: .*Ray: 2\.40\.0.*; install the"):
        cluster.connect(RunConfig(), "auto", dashboard=False, verbose=True)


# ---- ports and firewalls


def test_a_port_in_use_is_named_with_the_mend() -> None:
    with (
        Listener(HERE) as first,
        pytest.raises(UsageError, match=rf"cannot listen on {HERE}:{first.address[1]}: .*in use.*; choose another"),
    ):
        Listener(*first.address)


def test_a_firewall_that_drops_is_told_from_a_worker_that_is_gone(stack: ExitStack) -> None:
    """A full queue of connections is to a caller what a packet filter is: nobody answers."""
    full = stack.enter_context(socket.create_server((HERE, 0), backlog=0))
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    own = stack.enter_context(Listener(HERE))
    port = full.getsockname()[1]
    with pytest.raises(PeerLost, match=rf"rank 0 at {HERE}:{port} could not be reached within 0\.3 s: ") as lost:
        join([full.getsockname(), own.address], own, 1, deadline_s=0.3)
    text = str(lost.value)
    assert "no answer at all: a firewall drops what is sent there, or the address is wrong" in text
    assert f"open TCP between the machines if a firewall is in the way: port {port} this time" in text
    assert "\n" not in text
    gone = Listener(HERE)
    gone.close()
    with pytest.raises(PeerLost, match="the machine answers, but nothing listens there: the worker has ended"):
        join([gone.address, own.address], own, 1, deadline_s=0.3)


def test_a_firewall_that_rejects_says_no_route(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: Any, **__: Any) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    own = stack.enter_context(Listener(HERE))
    monkeypatch.setattr(socket, "create_connection", reject)
    with pytest.raises(PeerLost, match=r"within 0\.1 s: no route to host: a firewall rejects it, or there is no route"):
        join([(HERE, 9), own.address], own, 1, deadline_s=0.1)
