"""`elastic-dgc bench` as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import ray

from elastic_dgc.bench.network import interface_of
from elastic_dgc.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compression --model resnet21", ["resnet21", "did you mean 'resnet20'"]),
        ("compression --density 0", ["density = '0'", "greater than 0"]),
        ("compression --rounds 0", ["rounds = '0'", "greater than or equal to 1"]),
        ("compression --values fp8", ["values = 'fp8'", "'bf16'"]),
        ("exchange --model resnet500", ["resnet500", "did you mean"]),
        ("exchange --modes dgc,dpp", ["there is no mode 'dpp', did you mean 'ddp'?"]),
        ("exchange --modes ,", ["must name at least one of none, dgc"]),
        ("exchange --transport al", ["transport = 'al'", "'all-to-all'"]),
        ("exchange --world 0", ["world = 0", "at least 1"]),
        ("exchange --world two", ["'--world'", "'two' is not a valid integer", "--help"]),
        ("exchange --world 2 --workers 2", ["give one"]),
        ("exchange --workers 2", ["workers = 2", "give its --address, or --world 2"]),
        ("exchange --address x --workers 0", ["workers = 0", "at least 1"]),
        ("exchange --world 1 --model alexnet --size 8", ["alexnet", "8x8 pixels", "image_size"]),
        ("exchange --density 1", ["density = '1'", "below 1", "--modes dense"]),
        ("compression --json /nonexistent/x.json", ["--json /nonexistent/x.json", "cannot be written", "No such file"]),
        ("exchange --json /nonexistent/x.json", ["--json /nonexistent/x.json", "cannot be written", "No such file"]),
        ("compression --json /", ["--json /:", "cannot be written"]),
        ("exchanges", ["No such command 'exchanges'"]),
    ],
)
def test_wrong_input_is_one_clear_line(
    words: str, said: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def init(*args: object, **options: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(SystemExit) as end:
        main(["bench", *words.split()])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    for text in said:
        assert text in err


def test_looking_at_the_file_for_json_leaves_none_and_changes_none(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for file in (new, old):
        with pytest.raises(SystemExit) as end:  # what follows is wrong, so nothing is measured
            main(["bench", "compression", "--json", str(file), "--rounds", "0"])
        assert end.value.code == 2
    assert [one.name for one in tmp_path.iterdir()] == ["old.json"]
    assert old.read_text() == "kept"


def test_no_cluster_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:  # nobody may listen on TCP port 1
        main(["bench", "exchange", "--address", "127.0.0.1:1", "--model", "digits", "--size", "8"])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert re.fullmatch(r"error: no Ray cluster at '127.0.0.1:1': [^\n]+\n", err), err


@pytest.mark.processes  # the hook's memory is measured in a group of one rank
def test_compression_of_a_small_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", "compression", "--model", "resnet20", "--rounds", "2", "--json", str(file)])
    assert end.value.code == 0
    text, found = capsys.readouterr().out, json.loads(file.read_text())
    assert found["rounds"] == 2
    assert found["pass_ratio"] > 0
    assert found["machine"]["cores"] >= 1
    assert found["bits_per_entry"]["int8"] < found["bits_per_entry"]["bf16"] < found["bits_per_entry"]["fp32"] < 48
    assert found["upload_ratio"]["resnet50"]["bf16"] >= 480
    assert found["upload_ratio"]["resnet50"]["dgc-max"] >= 800
    assert (found["memory"]["trainer"]["owned"], found["memory"]["DDP hook"]["owned"]) == (4, 2)
    assert "upload ratio" in text
    assert ": met" in text
    assert "medians of 2 rounds" in text
    assert "scratch per parameter, trainer" in text
    assert text.count("the fixed block dominates") == 2
    assert "(*: of 2 rounds, fewer than 3: may be noise" in text
    [parts] = re.findall(r"part of 'all'.*?\n\(", text, re.DOTALL)
    assert "encode" in parts
    assert "decode" not in parts


@pytest.mark.processes
def test_exchange_between_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench exchange --world 2 --model digits --size 8 --rounds 1 --steps 1 --transport all-to-all --json -"
    with pytest.raises(SystemExit) as end:
        main(words.split())
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    found = json.loads(out)
    modes = found["modes"]
    assert found["workers"] == 2
    assert found["link"]["within a node"]["mbit_s"] > 0
    assert all(one["step_ms"] > 0 for one in modes.values())
    assert modes["dgc-bf16"]["bytes"] < modes["dgc"]["bytes"] < modes["dense"]["bytes"]
    # whole gradients by slices are a ring all-reduce's bytes; our rows and frames, and DDP's buffers, aside
    assert modes["dense"]["bytes"] == pytest.approx(modes["ddp"]["bytes"], rel=0.05)
    # our hook sends our messages; the rows beside them, and DDP's buffers, do not know of presets
    spared, by_hook = (modes[one]["bytes"] - modes[f"{one}-max"]["bytes"] for one in ("dgc", "ddp-dgc"))
    assert spared == pytest.approx(by_hook, abs=32)
    assert spared > 0
    assert modes["powersgd1"]["bytes"] < modes["powersgd4"]["bytes"] < modes["ddp"]["bytes"]
    parts = modes["dgc"]["parts_ms"]
    assert 0 < sum(parts.values()) <= modes["dgc"]["step_ms"]
    assert modes["ddp"]["parts_ms"] == {}
    assert "round 1 of 1" in err
    assert "our transport: all-to-all" in err
    assert found["dgc_pays"] is None
    assert "wanted" not in found
    assert "2 workers on 1 host, 2 images of 8x8 each; medians of 1 round of 1 step;" in err
    assert re.search(r"cannot be told: .* in 1 round; it takes 3 rounds$", err.splitlines()[-1])


@pytest.mark.processes
def test_a_worker_that_fails_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # BatchNorm cannot train on one value a channel: found in the workers only
    words = "bench exchange --world 1 --model resnet20 --size 4 --batch 1 --rounds 1 --modes none"
    with pytest.raises(SystemExit) as end:
        main(words.split())
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (1, "")
    last = err.splitlines()[-1]
    assert re.match(r"error: Expected more than 1 value per channel .*\(on worker 0\)$", last), err


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None  # reserved for documentation: nobody has it
