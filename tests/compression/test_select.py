"""Exact top-k: the same set as torch's, ties to the lowest index, zeros never."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.compression import select


def reference(values: torch.Tensor, k: int) -> list[int]:
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i].item()), i))
    return sorted(i for i in order[:k] if values[i] != 0)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-30, 3.5]), min_size=1, max_size=60), st.data())
def test_ties_go_to_the_lowest_index_and_zeros_stay(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values) + 2))
    tensor = torch.tensor(values)
    assert select.top_k(tensor, k).tolist() == reference(tensor, k)


@pytest.mark.parametrize("k", [1, 7, 66, 2000])
@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "mostly zero", "few large"])
def test_the_filter_never_changes_the_selection(kind: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(k)
    values = torch.randn(66_000, generator=generator)
    if kind == "heavy":
        values = values**5
    elif kind == "ties":
        values = (values * 4).round()
    elif kind == "mostly zero":
        values[torch.randperm(66_000, generator=generator)[: 66_000 - k // 2 - 1]] = 0
    elif kind == "few large":
        values[:: select.STRIDE] = 100.0  # all of the sample, so that the threshold is far too high or too low
    fast = select.top_k(values, k)
    monkeypatch.setattr(select, "FILTER_ABOVE", 1 << 40)
    assert torch.equal(fast, select.top_k(values, k))
    top = torch.topk(values.abs(), k).values
    assert torch.equal(values[fast].abs().sort(descending=True).values, top[top > 0])


def test_a_tensor_of_one_element() -> None:
    assert select.top_k(torch.tensor([-3.0]), 1).tolist() == [0]
    assert select.top_k(torch.tensor([0.0]), 1).tolist() == []
