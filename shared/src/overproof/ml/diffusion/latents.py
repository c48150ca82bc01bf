"""From images to the space in which prototypes are looked for."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class LatentSpace(Protocol):
    """Where images become points."""

    def shape(self, channels: int, size: tuple[int, int]) -> tuple[int, ...]:
        """Shape of the latent of one image of `channels` and `size` (H, W)."""
        ...

    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        """(B, C, H, W) pixels in [0, 1] → (B, *shape) float32 latents.

        Args:
            x: images, on the device.
            noise: (B, *shape) standard normal, for spaces in which an image is a cloud.
        """
        ...


class PixelSpace:
    """The images themselves: what is left without the weights of a diffusion model."""

    def shape(self, channels: int, size: tuple[int, int]) -> tuple[int, ...]:
        """(C, H, W)."""
        return (channels, *size)

    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        """The pixels as they are."""
        return x


class AutoencoderSpace:
    """The latents of a variational autoencoder, sampled and scaled as its denoiser knows them.

    Args:
        autoencoder: an `AutoencoderKL` of diffusers, frozen.
        resolution: side in pixels of what it sees; images are stretched to it.

    Source: arXiv:2407.15138, section 3.2; suduo94/D4M. Differs: bilinear stretching with
    antialiasing on the device.
    """

    def __init__(self, autoencoder: Any, resolution: int) -> None:
        self._autoencoder = autoencoder
        self._resolution = resolution

    def shape(self, channels: int, size: tuple[int, int]) -> tuple[int, ...]:
        """(4, resolution / 8, resolution / 8) of Stable Diffusion."""
        config = self._autoencoder.config
        side = self._resolution // 2 ** (len(config.block_out_channels) - 1)
        return (config.latent_channels, side, side)

    @torch.no_grad()
    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        """A sample of each image's cloud, by the noise."""
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        x = resized(x, (self._resolution, self._resolution))
        cloud = self._autoencoder.encode((2 * x - 1).to(self._autoencoder.dtype)).latent_dist
        sample: Tensor = cloud.mean + cloud.std * noise.to(cloud.mean)
        return sample.float() * float(self._autoencoder.config.scaling_factor)


def resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, C, H, W) stretched to (H, W) of `size`, bilinearly and without aliasing."""
    return functional.interpolate(x, size, mode="bilinear", antialias=True)
