"""Networks from the files that other units wrote."""

from __future__ import annotations

from pathlib import Path

from overproof.core.spec import PluginRef
from overproof.ml.augment.zca import Whitening
from overproof.ml.checkpoints import load_weights, read_weights
from overproof.ml.models.base import WHITENING, Normalized, build
from overproof.ml.shapes import ImageFacts


def load_network(network: PluginRef, facts: ImageFacts, path: Path) -> Normalized:
    """A network with the weights in a file, and the whitening if there is one among them.

    Args:
        network: name and parameters as in the catalog of models.
        facts: the images it is for.
        path: what `checkpoints.save_weights` wrote of a `Normalized`, or weights alone.

    Returns:
        The network on the CPU, in training mode.

    Raises:
        InvalidData: the weights are unusable or of another network.
        ShapeError: the whitening is of other images.
    """
    weights = read_weights(path)
    whitening = None
    if WHITENING in weights and "mean" in weights:
        whitening = Whitening(weights["mean"].squeeze(0), weights[WHITENING])
        whitening.check(facts, str(path))
    # The seed is of no consequence: all weights are replaced.
    model = build(network, facts, 0, whitening=whitening)
    load_weights(model, path)
    return model
