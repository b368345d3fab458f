"""Plain model files: written for everyone, read strictly."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from elastic_dgc.errors import UsageError
from elastic_dgc.models import export
from elastic_dgc.models.digits import DigitsNet


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_written_file_loads_without_this_package() -> None:
    state = DigitsNet().state_dict()
    state["transposed"] = torch.randn(3, 5).T
    state["shared"] = state["head.bias"]
    assert same(safetensors.torch.load(export.save_model(state)), state)


def test_equal_tensors_give_equal_bytes() -> None:
    state = DigitsNet().state_dict()
    backwards = dict(reversed(list(state.items())))
    assert export.save_model(state) == export.save_model(backwards)
    backwards["head.bias"] = backwards["head.bias"] + 1
    assert export.save_model(state) != export.save_model(backwards)


def test_both_formats_are_read(tmp_path: Path) -> None:
    state = dict(DigitsNet().state_dict())
    files = [export.save_model(state), saved(state), saved({"state_dict": state, "epoch": 3}), saved({"model": state})]
    for number, data in enumerate(files):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert same(export.load_state(str(path)), state)
        assert same(export.load_state(path.as_uri()), state)


def test_pickle_from_elsewhere_cannot_run_code(tmp_path: Path) -> None:
    trace = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> object:
            return Path.touch, (trace,)

    for data in (pickle.dumps(Evil(), protocol=2), saved({"w": Evil()})):
        with pytest.raises(UsageError, match=r"weights_only=True"):
            export.parse_state(data, "evil.pt")
    assert not trace.exists()


@pytest.mark.parametrize(
    "data", [b"", b"not a model", saved([1, 2]), saved({"a": 1}), saved(DigitsNet().state_dict())[:-99]]
)
def test_other_files_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"init_from = 'm.pt'") as caught:
        export.parse_state(data, "m.pt")
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.pt"), (tmp_path / "none.pt").as_uri(), "nowhere://x", str(tmp_path)):
        with pytest.raises(UsageError, match="init_from"):
            export.load_state(path)


def test_initialise_copies_everything() -> None:
    source, target = DigitsNet(), DigitsNet()
    source.features.norm1.running_mean.add_(1)  # buffers too
    export.initialise(target, source.state_dict(), "m")
    assert same(target.state_dict(), source.state_dict())


def test_new_head_keeps_its_fresh_values() -> None:
    source, target = DigitsNet(classes=10), DigitsNet(classes=7)
    head = target.head.weight.detach().clone()
    with pytest.raises(
        UsageError, match=r"head.weight \(10, 96\) for \(7, 96\).*init_skip = \['head.weight', 'head.bias'\]"
    ):
        export.initialise(target, source.state_dict(), "m")
    export.initialise(target, source.state_dict(), "m", ["head.*"])
    assert torch.equal(target.head.weight, head)
    assert torch.equal(target.features.conv2.weight, source.features.conv2.weight)
    with pytest.raises(UsageError, match=r"init_skip = 'haed.\*' matches no tensor"):
        export.initialise(target, source.state_dict(), "m", ["haed.*"])


def test_another_model_is_refused_and_changes_nothing() -> None:
    target = DigitsNet()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    good = DigitsNet().state_dict()
    lacking = {name: value for name, value in good.items() if name != "head.bias"}
    infinite = {**good, "head.bias": torch.full((10,), torch.inf)}
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        (lacking, "lacks head.bias"),
        ({**good, "extra": torch.ones(1)}, "unknown extra"),
        (nn.Linear(2, 2).state_dict(), "and 1[0-9] more and has unknown weight, bias"),
        (infinite, "head.bias has values that are not finite"),
    ]
    for state, message in cases:
        with pytest.raises(UsageError, match=message):
            export.initialise(target, state, "m")
        assert same(target.state_dict(), before)
