"""The weights of a diffusion model: loaded from a folder or the hub, pinned by what they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import torch

from overproof.errors import InvalidData, PluginUnavailable

_CHUNK_BYTES = 1 << 20


def load_pipeline(weights: str, revision: str | None, device: torch.device) -> Any:
    """The image-to-image pipeline of Stable Diffusion at `weights`, without its safety checker.

    The checker would black out images without a word. Half precision on a GPU, as published.

    Args:
        weights: absolute path of a folder, or a hub id.
        revision: see `DiffusionParams`.
        device: where to compute.

    Raises:
        PluginUnavailable: diffusers is not installed.
        InvalidData: there is no such pipeline, or not of that revision.
    """
    diffusers = _diffusers()
    pipeline = _loaded(
        lambda **options: diffusers.StableDiffusionImg2ImgPipeline.from_pretrained(
            weights,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
            **options,
        ),
        weights,
        revision,
        device,
    )
    pipeline.scheduler = diffusers.PNDMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)


def load_autoencoder(weights: str, revision: str | None, device: torch.device) -> Any:
    """Its variational autoencoder alone; arguments and errors as `load_pipeline`."""
    diffusers = _diffusers()
    autoencoder = _loaded(
        lambda **options: diffusers.AutoencoderKL.from_pretrained(
            weights, subfolder="vae", **options
        ),
        weights,
        revision,
        device,
    )
    return autoencoder.to(device).eval().requires_grad_(False)


def digest_of(folder: Path) -> str:
    """SHA-256 over the names and bytes of all files below `folder`, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        own = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                own.update(chunk)
        total.update(f"{path.relative_to(folder).as_posix()}\n{own.hexdigest()}\n".encode())
    return total.hexdigest()


def _diffusers() -> Any:
    try:
        import diffusers
        import transformers  # pipelines need it, and diffusers says so only at use
    except ImportError as error:
        raise PluginUnavailable(
            f"weights of a diffusion model need {error.name}; install overproof[diffusion], or ask "
            "for variant: medoid without weights"
        ) from error
    # Bars of a child process would be lines of its parent's log.
    bars: tuple[Any, ...] = (diffusers.utils.logging, transformers.utils.logging)
    for each in bars:
        each.disable_progress_bar()
    return diffusers


def _loaded(
    load: Callable[..., Any], weights: str, revision: str | None, device: torch.device
) -> Any:
    # Pickled weights could hold code: only safetensors are read.
    options: dict[str, Any] = {
        "use_safetensors": True,
        "dtype": torch.float16 if device.type == "cuda" else torch.float32,
    }
    if PurePath(weights).is_absolute():
        _check_folder(Path(weights), revision)
    else:
        options["revision"] = revision
    try:
        return load(**options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidData(
            f"weights {weights} are no Stable Diffusion pipeline that can be loaded ({first}); "
            "name a folder that holds model_index.json, or a hub id that this machine can reach"
        ) from error


def _check_folder(folder: Path, revision: str | None) -> None:
    if not (folder / "model_index.json").is_file():
        raise InvalidData(
            f"{folder} on this machine holds no model_index.json; put the folder of a Stable "
            "Diffusion pipeline there, or ask for variant: medoid without weights"
        )
    if revision is not None and digest_of(folder) != revision:
        raise InvalidData(
            f"{folder} has files of another revision than {revision[:12]}…; it is "
            f"{digest_of(folder)}"
        )
