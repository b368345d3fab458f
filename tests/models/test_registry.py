"""Models by name: what every one of them promises, and what cannot be built."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elastic_dgc.errors import UsageError
from elastic_dgc.models import registry
from elastic_dgc.models.cifar_resnet import BasicBlock, CifarResNet


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet20", 0.27e6), ("resnet56", 0.85e6), ("resnet110", 1.7e6)],  # He et al., table 6
)
def test_cifar_resnets_have_the_papers_size(name: str, parameters: float) -> None:
    with torch.device("meta"):
        model = registry.build(name, 10)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.02)


def test_cifar_resnet_has_as_many_layers_as_its_name_says() -> None:
    layers = [m for m in CifarResNet(56).modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 56
    with pytest.raises(ValueError, match=r"6n\+2"):
        CifarResNet(21)


def test_shortcut_is_option_a() -> None:
    block = BasicBlock(4, 8, 2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # nothing is added to the shortcut
    x = torch.randn(3, 4, 6, 6)
    expected = torch.zeros(3, 8, 3, 3)
    expected[:, 2:6] = x[:, :, ::2, ::2]
    assert torch.equal(block(x), F.relu(expected))


def test_digits_network_gives_compression_something_to_do() -> None:
    model = registry.build("digits", 10, registry.default_channels("digits"))
    sizes = [p.numel() for p in model.parameters()]
    large = [p.numel() for p in model.parameters() if p.dim() >= 2 and p.numel() >= 256]
    assert 50_000 <= sum(sizes) <= 150_000
    assert sum(large) > 0.99 * sum(sizes)
    for size in (8, 13, 32):
        assert model(torch.randn(2, 1, size, size)).shape == (2, 10)


def test_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in registry.build("digits", 10, 1).parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_torchvision_models_are_known_and_take_the_number_of_classes() -> None:
    assert {"resnet50", "vit_b_16", "digits", "resnet20"} <= set(registry.known())
    with torch.device("meta"):
        assert registry.build("shufflenet_v2_x0_5", 7).fc.out_features == 7


def test_auxiliary_heads_are_left_out() -> None:
    with torch.device("meta"):
        logits = registry.build("googlenet", 7).train()(torch.empty(2, 3, 64, 64))
    assert logits.shape == (2, 7)


def test_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'resnet20'"):
        registry.build("resnet2O", 10)


def test_what_a_model_does_not_take_is_named() -> None:
    with pytest.raises(UsageError, match="channels = 1: resnet18"):
        registry.build("resnet18", 10, channels=1)
    with pytest.raises(UsageError, match="at least 1 class"):
        registry.build("resnet20", 0)
    with torch.device("meta"), pytest.raises(UsageError, match=r"vit_b_32.*50 pixels"):
        registry.build("vit_b_32", 10, image_size=50)


def test_size_check_refuses_too_small_images_and_changes_nothing() -> None:
    model = registry.build("squeezenet1_1", 3)
    with pytest.raises(UsageError, match=r"8x9 pixels.*image_size to 17 or more"):
        registry.check_size(model, "squeezenet1_1", 3, 9, 8)

    model = registry.build("resnet20", 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_before = torch.random.get_rng_state()
    registry.check_size(model, "resnet20", 3, 8, 8)
    assert torch.equal(torch.random.get_rng_state(), random_before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(UsageError, match="resnet20"):
        registry.check_size(model, "resnet20", 1, 8, 8)
