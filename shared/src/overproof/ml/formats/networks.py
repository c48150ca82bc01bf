"""From a checkpoint of anybody's to weights of ours, which experiments attack."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from overproof.core.spec import PluginRef
from overproof.ml.checkpoints import save_weights
from overproof.ml.formats import spaces, weights
from overproof.ml.formats.content import Target
from overproof.ml.models.base import build


def import_network(
    path: Path,
    into: Path,
    target: Target,
    network: PluginRef,
    *,
    normalisation: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    which: str | None = None,
) -> dict[str, Any]:
    """Write the network in the checkpoint `path` to `into`, as `checkpoints.save_weights` does.

    Args:
        path: see `weights.read`.
        into: the file to write; replaced if it exists.
        target: the data set that it was trained for.
        network: canonical.
        normalisation: whose mean and deviation it was trained with, see `spaces.statistics`; not
            needed where the weights hold them.
        mean: of each channel, given by number.
        std: the deviations to it.
        which: see `weights.read`.

    Returns:
        As JSON: `dataset`, `network`, `tensors`, `parameters`, `mean`, `std`, `source` (name and
        SHA-256), `notes`.

    Raises:
        InvalidData: the checkpoint is unusable or does not fit the network, or nobody says how
            images are normalised.
    """
    found = weights.read(path, which)
    # The seed is of no consequence: all weights are replaced.
    model = build(network, target.facts, seed=0)
    notes = weights.put_into(model, found, path)
    is_said = normalisation is not None or mean is not None or std is not None
    if found.mean is not None and not is_said:
        channels = target.facts.channels
        mean = found.mean * channels if len(found.mean) == 1 else found.mean
        std = (found.std or ()) * channels if len(found.std or ()) == 1 else found.std
        notes = (*notes, "mean and deviation are those among the weights")
    used = spaces.statistics(
        target,
        name=normalisation,
        mean=mean,
        std=std,
        what=f"the network in {path} sees normalised images",
    )
    for buffer, values in zip((model.mean, model.std), used, strict=True):
        buffer.copy_(torch.tensor(values).view(1, -1, 1, 1))
    save_weights(model, into)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "dataset": target.dataset,
        "network": network.model_dump(mode="json"),
        "tensors": len(found.tensors),
        "parameters": sum(tensor.numel() for tensor in found.tensors.values()),
        "mean": list(used[0]),
        "std": list(used[1]),
        "source": {"name": path.name, "sha256": digest},
        "notes": list(notes),
    }
