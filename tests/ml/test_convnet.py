from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from overproof.catalog.models import ConvNetParams
from overproof.errors import ShapeError
from overproof.ml.models.convnet import ConvNet
from overproof.ml.seeding import seeded_init
from overproof.ml.shapes import ImageFacts


def _facts(channels: int, side: int, classes: int) -> ImageFacts:
    return ImageFacts(
        channels=channels,
        size=(side, side),
        classes=classes,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


def _convnet(facts: ImageFacts, **params: object) -> ConvNet:
    return seeded_init(lambda: ConvNet(ConvNetParams.model_validate(params), facts), 0)


@pytest.mark.parametrize(
    ("channels", "side", "classes", "depth", "parameters"),
    [
        (1, 28, 10, 3, 317_706),
        (3, 32, 10, 3, 320_010),
        (3, 32, 100, 3, 504_420),
        (3, 64, 200, 4, 857_160),
        (3, 128, 10, 5, 615_690),
        (3, 64, 1000, 4, 2_496_360),
    ],
)
def test_number_of_parameters_is_that_of_the_reference(
    channels: int, side: int, classes: int, depth: int, parameters: int
) -> None:
    network = _convnet(_facts(channels, side, classes), depth=depth)

    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert network.classifier.in_features == 2048


def test_output_is_that_of_the_layers_written_out() -> None:
    network = _convnet(_facts(1, 28, 4), width=6)
    weights = network.state_dict()
    for name in ("features.1", "features.5", "features.9"):
        weights[f"{name}.weight"].copy_(torch.linspace(0.5, 1.5, 6))
        weights[f"{name}.bias"].copy_(torch.linspace(-0.2, 0.3, 6))
    x = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(1))

    expected = x
    for block, padding in enumerate((3, 1, 1)):
        conv, norm = f"features.{4 * block}", f"features.{4 * block + 1}"
        expected = functional.conv2d(
            expected, weights[f"{conv}.weight"], weights[f"{conv}.bias"], padding=padding
        )
        mean = expected.mean(dim=(2, 3), keepdim=True)
        variance = (expected - mean).square().mean(dim=(2, 3), keepdim=True)
        expected = (expected - mean) / (variance + 1e-5).sqrt()
        scale, offset = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        expected = (expected * scale.view(1, -1, 1, 1) + offset.view(1, -1, 1, 1)).clamp(min=0)
        half = expected.shape[2] // 2
        expected = expected.reshape(5, 6, half, 2, half, 2).mean(dim=(3, 5))
    features = expected.reshape(5, 6 * 4 * 4)

    torch.testing.assert_close(network.embed(x), features, rtol=1e-4, atol=1e-5)
    logits = features @ weights["classifier.weight"].T + weights["classifier.bias"]
    torch.testing.assert_close(network(x), logits, rtol=1e-4, atol=1e-5)


def test_one_block_of_known_weights_gives_the_number_worked_out_by_hand() -> None:
    facts = _facts(1, 2, 1)
    network = _convnet(facts, width=1, depth=1, norm="none")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.state_dict()["features.0.weight"][0, 0, 1, 1] = (
            2.0  # the middle tap doubles each pixel
        )
        network.classifier.weight.fill_(3.0)
        network.classifier.bias.fill_(0.5)

    logits = network(torch.tensor([[[[1.0, -4.0], [2.0, 5.0]]]]))

    # doubled 2 -8 4 10, rectified 2 0 4 10, averaged 4, times 3 plus a half
    assert logits.item() == pytest.approx(12.5)


@pytest.mark.parametrize("norm", ["instance", "layer", "group", "none"])
def test_images_do_not_influence_each_other_even_in_training_mode(norm: str) -> None:
    network = _convnet(_facts(3, 8, 2), width=8, depth=2, norm=norm).train()
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    torch.testing.assert_close(network(x)[:1], network(x[:1]))


@pytest.mark.parametrize("pooling", ["avg", "max", "none"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "leaky-relu", "swish"])
@pytest.mark.parametrize("norm", ["instance", "batch", "layer", "group", "none"])
def test_every_choice_of_layers_fits_together(norm: str, activation: str, pooling: str) -> None:
    network = _convnet(
        _facts(1, 8, 3), width=4, depth=2, norm=norm, activation=activation, pooling=pooling
    )

    logits = network(torch.zeros(2, 1, 8, 8))

    side = 8 if pooling == "none" else 2
    assert network.classifier.in_features == 4 * side * side
    assert logits.shape == (2, 3)


def test_digits_of_eight_pixels_take_a_depth_of_three_and_no_more() -> None:
    _convnet(_facts(1, 8, 10), width=4, depth=3)

    with pytest.raises(ShapeError, match=r"depth 4 .* 8 × 8 .* at most 3"):
        _convnet(_facts(1, 8, 10), width=4, depth=4)


def test_group_norm_needs_a_width_that_four_divides() -> None:
    with pytest.raises(ShapeError, match="a width of 6"):
        _convnet(_facts(1, 8, 10), width=6, norm="group")


def test_layers_have_the_names_of_the_reference() -> None:
    names = set(_convnet(_facts(3, 8, 2), width=4, depth=2).state_dict())

    assert names == {
        f"{layer}.{kind}"
        for layer in ("features.0", "features.1", "features.4", "features.5", "classifier")
        for kind in ("weight", "bias")
    }
