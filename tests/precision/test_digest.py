"""A digest sees what a value check does not."""

from __future__ import annotations

import torch

from elastic_dgc.precision.digest import combine, count_different, differences, digests, named_workers, tensor_digest
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
    third = digests({"a": torch.ones(3), "b": -torch.ones(2)})

    def said(*workers: dict[str, str]) -> list[str]:
        return [str(one) for one in differences(workers)]

    assert said(good, good, good) == []
    assert said(good, odd, good) == ["'b' on worker 1 of 3"]
    assert said(good, {}, good) == ["'a' on worker 1 of 3", "'b' on worker 1 of 3"]
    assert said(odd, good, good, third, good) == ["'b' on workers 0 and 3 of 5"]
    assert said(good, odd) == ["'b' on workers 0 and 1 of 2"]
    assert said(good, odd, third) == ["'b' on all 3 workers, no two alike"]
    assert said(odd, good, good, odd) == ["'b' on workers 0 and 3 against workers 1 and 2 of 4"]
    assert [one.has_majority for one in differences([good, odd, good])] == [True]
    assert [one.has_majority for one in differences([good, odd, good, odd])] == [False]
    assert differences([odd, good, good])[0].apart == (0,)
    assert named_workers([3]) == "worker 3"
    assert combine(good) != combine(odd)


def test_different_values_are_counted_by_their_bytes() -> None:
    base = torch.tensor([0.0, float("nan"), 1.0, 2.0])
    other = torch.tensor([-0.0, float("nan"), 1.0, 3.0])
    assert count_different(base, other) == 2
    assert count_different(base, base.clone()) == 0
    assert count_different(torch.tensor(1), torch.tensor(2)) == 1
    assert count_different(torch.zeros(0), torch.zeros(0)) == 0


def test_non_finite_values_are_found_and_named() -> None:
    tensors = {"a": torch.ones(3), "b": torch.tensor([1.0, float("nan"), float("inf")]), "n": torch.tensor([1, 2])}
    assert first_non_finite(tensors) == "b (2 of 3 values not finite)"
    assert first_non_finite({"a": tensors["a"], "n": tensors["n"]}) is None
    assert not all_finite(list(tensors.values()))
    assert all_finite([tensors["a"], tensors["n"]])
    assert not torch.isfinite(joint_norm(torch.tensor([3e38, 3e38])))
