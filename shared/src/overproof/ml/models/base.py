"""Networks by name, with their first layer: the normalisation of pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from overproof.catalog.models import MODELS, ForeignModelInfo
from overproof.core.spec import PluginRef
from overproof.ml.augment.zca import Whitening
from overproof.ml.seeding import seeded_init
from overproof.ml.shapes import ImageFacts

WHITENING = "matrix"  # name of the whitening among the weights of a network that has one


class Network(nn.Module, ABC):
    """A classifier of normalised images.

    Plug-ins of the catalog are called as `factory(params, facts)` and return one, on the CPU, in
    float32 and training mode, its initial values drawn from torch's global generator (see
    `seeding.seeded_init`). In eval mode each image's logits are its own: nothing mixes samples.
    """

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, D) features, the input of the last layer."""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """(B, D) features → (B, K) logits: the last layer."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, K) logits."""
        return self.classify(self.embed(x))


class BodyAndHead(Network):
    """A network made of two modules.

    Args:
        body: (B, C, H, W) → (B, D).
        head: (B, D) → (B, K).
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, D) features."""
        features: Tensor = self.body(x)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """(B, D) features → (B, K) logits."""
        logits: Tensor = self.head(features)
        return logits


class Normalized(nn.Module):
    """A network that takes pixels in [0, 1], as attacks need it.

    Training and distillation, which augment in normalised space (where zero is the mean colour),
    call `normalize` and `network` apart. Mean and deviation are buffers: they are saved with the
    weights, since they are part of the function.

    Attributes:
        network: of normalised images.
        classes: K, the number of logits.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, facts: ImageFacts) -> None:
        super().__init__()
        self.network = network
        self.classes = facts.classes
        self.register_buffer("mean", torch.tensor(facts.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(facts.std).view(1, -1, 1, 1))

    @property
    def whitening(self) -> Whitening | None:
        """None; see `Whitened`."""
        return None

    def normalize(self, x: Tensor) -> Tensor:
        """(B, C, H, W) pixels in [0, 1] → the same in units of the data set's deviation."""
        return (x - self.mean) / self.std

    def denormalize(self, x: Tensor) -> Tensor:
        """The inverse of `normalize`; the result may leave [0, 1]."""
        return x * self.std + self.mean

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) pixels in [0, 1] → (B, D) features."""
        return self.network.embed(self.normalize(x))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) pixels in [0, 1] → (B, K) logits."""
        logits: Tensor = self.network(self.normalize(x))
        return logits


class Whitened(Normalized):
    """A network that takes pixels in [0, 1] and whitens them, instead of scaling each channel.

    The whitening is saved with the weights, and attacks differentiate through it.

    Args:
        network: of whitened images.
        facts: the images.
        whitening: of images like `facts`.
    """

    matrix: Tensor

    def __init__(self, network: Network, facts: ImageFacts, whitening: Whitening) -> None:
        super().__init__(network, facts)
        del self.std
        self.mean = whitening.mean.unsqueeze(0)
        self.register_buffer(WHITENING, whitening.matrix)

    @property
    def whitening(self) -> Whitening:
        """What it does to pixels; on the CPU."""
        return Whitening(self.mean.squeeze(0).cpu(), self.matrix.cpu())

    def normalize(self, x: Tensor) -> Tensor:
        """(…, C, H, W) pixels in [0, 1] → the same, whitened."""
        white: Tensor = (x - self.mean).flatten(-3) @ self.matrix
        return white.view_as(x)

    def denormalize(self, x: Tensor) -> Tensor:
        """The inverse of `normalize`; the result may leave [0, 1]."""
        inverse = torch.linalg.inv(self.matrix.double()).to(x)
        centred: Tensor = x.flatten(-3) @ inverse
        return centred.view_as(x) + self.mean


def build(
    network: PluginRef,
    facts: ImageFacts,
    seed: int,
    *labels: str | int,
    whitening: Whitening | None = None,
) -> Normalized:
    """The network `network` for images like `facts`, its initial values following from the seed.

    Args:
        network: name and parameters as in the catalog of models.
        facts: the images it is for.
        seed: equal seeds and labels give equal bytes.
        *labels: what the network is for, as in `seeding.generator`.
        whitening: in the place of the normalisation of channels; None for that.

    Returns:
        The network on the CPU, in float32 and training mode.

    Raises:
        UnknownPlugin, InvalidSpec, PluginUnavailable: as the registry does.
        ShapeError: the network cannot take images of that size.
    """
    from overproof.ml.models import foreign  # which builds on the classes above

    factory = MODELS.load(network.name)
    params = MODELS.resolve(network)
    info = MODELS.get(network.name)

    def made() -> Normalized:
        if isinstance(info, ForeignModelInfo):
            module = foreign.make(factory, params, facts, info.arguments)
        else:
            module = factory(params, facts)
        if whitening is None:
            return Normalized(module, facts)
        return Whitened(module, facts, whitening)

    return seeded_init(made, seed, *labels)
