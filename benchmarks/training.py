"""Training five networks on one distilled set, against the plain eager loop over networks."""

from __future__ import annotations

import time

import torch

from benchmarks.record import Record
from overproof.catalog.protocols import DsaProtocolParams
from overproof.core.spec import PluginRef
from overproof.ml.devices import device_facts, pick_device
from overproof.ml.models.base import build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means, choose_means
from overproof.ml.train.protocols import hard_label

PREFIX = "train"
NETWORKS = 5
IMAGES = 100
# Epochs that are run of each, in turns, so that a busy machine is equally busy for both.
ROUNDS = 3
EPOCHS_A_ROUND = 1
# Epochs to which both are extended; an epoch always costs the same, compiling is paid once.
EPOCHS = 1_001

FACTS = ImageFacts(
    channels=3,
    size=(32, 32),
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
)
NETWORK = PluginRef(name="convnet")


def run() -> list[Record]:
    """Seconds of the DSA protocol for five ConvNets on 100 images, compiling included."""
    device = pick_device()
    model = build(NETWORK, FACTS, 0)
    means, reason = choose_means(model.network, FACTS, device=device, images=IMAGES, epochs=EPOCHS)
    ours, plain = _training(means, device), _training(Means.EAGER, device)
    first_epoch_s = _seconds(ours, 0, 1, device)
    _seconds(plain, 0, 1, device)

    ours_s, plain_s = [], []
    for i in range(ROUNDS):
        first = 1 + i * EPOCHS_A_ROUND
        plain_s.append(_seconds(plain, first, first + EPOCHS_A_ROUND, device) / EPOCHS_A_ROUND)
        ours_s.append(_seconds(ours, first, first + EPOCHS_A_ROUND, device) / EPOCHS_A_ROUND)
    epoch_s, plain_epoch_s = sorted(ours_s)[ROUNDS // 2], sorted(plain_s)[ROUNDS // 2]
    facts = {
        **device_facts(device),
        "networks": NETWORKS,
        "images": IMAGES,
        "epochs": EPOCHS,
        "means": means.value,
        "reason": reason,
        "epoch_s": epoch_s,
        "plain_epoch_s": plain_epoch_s,
        "first_epoch_s": first_epoch_s,
        "epochs_measured": ROUNDS * EPOCHS_A_ROUND,
    }
    return [
        Record(
            name="train.five_networks",
            value=first_epoch_s + epoch_s * (EPOCHS - 1),
            unit="s",
            reference="eager loop over networks",
            reference_value=plain_epoch_s * EPOCHS,
            facts=facts,
        )
    ]


def _training(means: Means, device: torch.device) -> Training:
    seeds = range(NETWORKS)
    return Training(
        [build(NETWORK, FACTS, seed) for seed in seeds],
        seeds,
        torch.rand(IMAGES, 3, 32, 32, generator=generator(0, "benchmark")),
        torch.arange(IMAGES) % FACTS.classes,
        hard_label(DsaProtocolParams(), mirrors=True),
        means=means,
        device=device,
    )


def _seconds(training: Training, first: int, last: int, device: torch.device) -> float:
    began = time.perf_counter()
    for epoch in range(first, last):
        training.step(epoch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
