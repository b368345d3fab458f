"""Exact top-k: the same set as a sort's, ties to the lowest index, by either way and through any grouping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.compression import select


def reference(values: torch.Tensor, k: int) -> list[int]:
    order = torch.sort(values.abs(), descending=True, stable=True).indices  # stable: ties in order of position
    return sorted(order[:k].tolist())


def by_keys(values: torch.Tensor, k: int) -> torch.Tensor:
    """The way a GPU takes."""
    size = select.group_size(values.numel(), k)
    maxima = torch.empty(select.groups_of(values.numel(), size))
    select.group_maxima(values, size, maxima, torch.empty_like(values))
    return select.top_k_by_keys(values, k, size, maxima)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-30, 3.5]), min_size=1, max_size=300), st.data())
def test_ties_go_to_the_lowest_index(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(20, len(values)) + 2))
    tensor = torch.tensor(values)
    assert select.top_k(tensor, k).tolist() == reference(tensor, k)
    assert by_keys(tensor, k).tolist() == reference(tensor, k)


@pytest.mark.parametrize("k", [1, 7, 66, 2000])
@pytest.mark.parametrize("numel", [64_000, 66_001])
@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "mostly zero", "all at the end", "equal"])
def test_the_filter_never_changes_the_selection(kind: str, numel: int, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    values = torch.randn(numel, generator=generator)
    if kind == "heavy":
        values = values**5
    elif kind == "ties":
        values = (values * 4).round()
    elif kind == "mostly zero":
        values[torch.randperm(numel, generator=generator)[: numel - k // 2 - 1]] = 0
    elif kind == "all at the end":
        values[-k:] = 100.0
    elif kind == "equal":
        values = torch.full((numel,), -2.0)
    assert select.top_k(values, k).tolist() == reference(values, k)
    assert by_keys(values, k).tolist() == reference(values, k)


def test_a_tensor_of_one_element() -> None:
    assert select.top_k(torch.tensor([-3.0]), 1).tolist() == [0]
