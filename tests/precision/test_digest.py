"""A digest sees what a value check does not."""

from __future__ import annotations

import torch

from elastic_dgc.precision.digest import combine, differences, digests, tensor_digest
from elastic_dgc.precision.finite import all_finite, first_non_finite, joint_norm


def test_every_bit_its_place_and_its_type_count() -> None:
    base = torch.arange(8, dtype=torch.float32)
    flipped = base.clone()
    flipped.view(torch.int32)[3] ^= 1
    others = [flipped, base.flip(0), base.double(), base.view(2, 4), base[:7], -base]
    assert len({tensor_digest(t) for t in [base, *others]}) == 7
    assert tensor_digest(torch.zeros(4)) != tensor_digest(-torch.zeros(4))
    assert tensor_digest(base.view(2, 4).t().contiguous().t()) == tensor_digest(base.view(2, 4))
    assert tensor_digest(torch.tensor(3)) != tensor_digest(torch.tensor([3]))


def test_differences_name_the_tensor_and_who_stands_apart() -> None:
    good = digests({"a": torch.ones(3), "b": torch.zeros(2)})
    odd = digests({"a": torch.ones(3), "b": torch.ones(2)})
    assert differences([good, good, good]) == []
    assert differences([good, odd, good]) == ["'b' on worker 1 of 3"]
    assert differences([good, {}, good]) == ["'a' on worker 1 of 3", "'b' on worker 1 of 3"]
    assert combine(good) != combine(odd)


def test_non_finite_values_are_found_and_named() -> None:
    tensors = {"a": torch.ones(3), "b": torch.tensor([1.0, float("nan"), float("inf")]), "n": torch.tensor([1, 2])}
    assert first_non_finite(tensors) == "b (2 of 3 values not finite)"
    assert first_non_finite({"a": tensors["a"], "n": tensors["n"]}) is None
    assert not all_finite(list(tensors.values()))
    assert all_finite([tensors["a"], tensors["n"]])
    assert not torch.isfinite(joint_norm(torch.tensor([3e38, 3e38])))
