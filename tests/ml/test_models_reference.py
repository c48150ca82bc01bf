"""Networks against the published ones they derive from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v2, resnet18

from overproof.core.spec import PluginRef
from overproof.errors import ShapeError, UnknownPlugin
from overproof.ml.models.base import Normalized, build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts

CIFAR10 = ImageFacts(
    channels=3, size=(32, 32), classes=10, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
)


def _build(name: str, facts: ImageFacts = CIFAR10, **params: str | float) -> Normalized:
    return build(PluginRef(name=name, params=params), facts, 0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet-18", 11_173_962),  # as usual on CIFAR-10: the stem is 3 × 3
        ("vgg-11", 9_231_114),  # as usual on CIFAR-10: one linear layer
        ("mobilenet-v2", 2_236_682),  # strides do not change the number
    ],
)
def test_number_of_parameters_is_the_published_one(name: str, parameters: int) -> None:
    assert sum(weight.numel() for weight in _build(name).parameters()) == parameters


def test_resnet_is_torchvisions_with_another_stem() -> None:
    network = _build("resnet-18")
    reference = resnet18(num_classes=10)
    reference.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    reference.load_state_dict(_torchvision_names(network, head="fc"))

    _assert_same_function(network.network, reference)


def test_mobilenet_is_torchvisions_with_other_strides() -> None:
    network = _build("mobilenet-v2")
    reference = mobilenet_v2(num_classes=10, dropout=0.0)
    reference.features[0][0].stride = (1, 1)
    reference.features[2].conv[1][0].stride = (1, 1)
    reference.load_state_dict(_torchvision_names(network, head="classifier.1"))

    _assert_same_function(network.network, reference)


def _assert_same_function(network: nn.Module, reference: nn.Module) -> None:
    x = torch.randn(4, 3, 32, 32, generator=generator(0, "images"))

    # In training mode: with the statistics of a fresh network all logits would be about zero.
    logits = network.train()(x)

    assert logits.std(dim=0).min() > 1e-2
    torch.testing.assert_close(logits, reference.train()(x), rtol=1e-3, atol=1e-4)


def _torchvision_names(network: Normalized, head: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("body.").replace("head.", f"{head}."): tensor
        for name, tensor in network.network.state_dict().items()
    }


def test_vgg_is_convolutions_norms_and_poolings_in_the_published_order() -> None:
    network = _build("vgg-11")

    layers = list(network.network.get_submodule("features").children())
    text = "".join(
        {"Conv2d": "c", "BatchNorm2d": "b", "ReLU": "r", "MaxPool2d": "M"}[type(layer).__name__]
        for layer in layers
    )
    channels = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]

    assert text == "cbrM" * 2 + "cbrcbrM" * 3
    assert channels == [64, 128, 256, 256, 512, 512, 512, 512]


@pytest.mark.parametrize(("name", "side"), [("resnet-18", 8), ("vgg-11", 16)])
def test_instance_norm_of_single_pixels_is_refused(name: str, side: int) -> None:
    facts = ImageFacts(channels=1, size=(side, side), classes=10, mean=(0.5,), std=(0.5,))

    with pytest.raises(ShapeError, match="use norm: batch"):
        _build(name, facts, norm="instance")


def test_unknown_architecture_of_timm_is_refused_with_close_ones() -> None:
    with pytest.raises(UnknownPlugin, match=r"'resnet19'; did you mean .*resnet18"):
        _build("timm", architecture="resnet19")


@pytest.mark.parametrize("name", ["hf-hub:someone/model", "local-dir:/tmp/model", "timm/resnet18"])
def test_name_that_would_fetch_something_is_refused(name: str) -> None:
    with pytest.raises(UnknownPlugin, match="timm has no architecture"):
        _build("timm", architecture=name)


def test_architecture_that_cannot_take_the_images_is_refused() -> None:
    facts = ImageFacts(channels=1, size=(28, 28), classes=10, mean=(0.5,), std=(0.5,))

    with pytest.raises(ShapeError, match=r"test_vit cannot take images of 28 × 28: .*divisible"):
        _build("timm", facts, architecture="test_vit")
