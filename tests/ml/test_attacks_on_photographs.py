"""APGD, FAB and Square against torchattacks, on networks that the product trained on CIFAR-10.

500 test images; at most 1 % of the flags may differ. Steps are fewer than the defaults, so that all
of it takes three minutes of one core: 20 of APGD, 10 for each of nine targets, 10 of FAB, 500
queries of Square on 100 images.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torchattacks
from torch import Tensor, nn

from overproof.core.spec import DatasetSpec
from overproof.ml.datasets.base import Dataset, load
from overproof.ml.datasets.packing import pack
from overproof.ml.train.evaluation import pixels_of
from tests.ml.oracles import flags, rows_of, with_our_squares
from tests.ml.victims import an_attack, convnet, small_resnet, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VARIABLE = "OVERPROOF_TEST_CIFAR10"
TRAINING_IMAGES, TEST_IMAGES = 200, 50  # of each class
LINF, L2 = 2 / 255, 0.25
CHANCE = 0.1

Victims = dict[str, tuple[nn.Module, Tensor, Tensor]]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The first images of every class, by the product's reader."""
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"{VARIABLE} names no tar of CIFAR-10 as train/<class>/ and test/<class>/")
    folder = tmp_path_factory.mktemp("photographs")
    taken: Counter[tuple[str, ...]] = Counter()
    with tarfile.open(source) as whole, tarfile.open(folder / "part.tar", "w") as part:
        for member in whole:
            place = PurePosixPath(member.name).parts[-3:-1]
            limit = TRAINING_IMAGES if place[:1] == ("train",) else TEST_IMAGES
            if member.isfile() and place and taken[place] < limit:
                taken[place] += 1
                part.addfile(member, whole.extractfile(member))
    pack("cifar-10", folder / "part.tar", folder / "packed")
    return load(DatasetSpec(name="cifar-10"), Path(folder / "packed"))


@pytest.fixture(scope="module")
def victims(photographs: Dataset) -> Victims:
    """A ConvNet of width 16 and a small ResNet with batch norm, with the test images."""
    x, y = pixels_of(photographs.test_images), photographs.test_labels
    facts, images, labels = photographs.facts, photographs.train_images, photographs.train_labels
    networks = {
        "convnet": trained(convnet(facts, width=16, depth=3), images, labels, epochs=15),
        "resnet": trained(small_resnet(facts, width=8), images, labels, epochs=8),
    }
    return {name: (network, x, y) for name, network in networks.items()}


@pytest.mark.parametrize("kind", ["convnet", "resnet"])
def test_networks_have_learned(kind: str, victims: Victims) -> None:
    network, x, y = victims[kind]

    # Three deviations of guessing are 0.04.
    assert len(x) == 500
    assert float((network(x).argmax(dim=1) == y).float().mean()) > CHANCE + 0.15


@pytest.mark.parametrize("kind", ["convnet", "resnet"])
@pytest.mark.parametrize(
    ("name", "radius", "params"),
    [
        ("apgd-ce-linf", LINF, {"steps": 20}),
        ("apgd-dlr-linf", LINF, {"steps": 20}),
        ("apgd-t-linf", LINF, {"steps": 10}),
        ("apgd-ce-l2", L2, {"steps": 20}),
        ("apgd-dlr-l2", L2, {"steps": 20}),
        ("fab-linf", LINF, {"steps": 10}),
        ("fab-t-linf", LINF, {"steps": 10, "targets": 5}),
        ("fab-t-l2", L2, {"steps": 10, "targets": 3}),
    ],
)
def test_at_most_one_flag_in_a_hundred_differs(
    name: str, radius: float, params: dict[str, Any], kind: str, victims: Victims
) -> None:
    network, x, y = victims[kind]

    theirs = flags(name, network, x, y, radius, **params)
    ours = an_attack(name, **params)(network, x, y, radius=radius)

    clean = int((ours.clean_prediction == y).sum())
    assert 0.1 * clean < int(theirs.sum()) < 0.95 * clean
    assert int((ours.worst != theirs).sum()) <= 0.01 * len(x)


@pytest.mark.parametrize("kind", ["convnet", "resnet"])
def test_square_with_equal_draws_gives_equal_flags(kind: str, victims: Victims) -> None:
    network, x, y = victims[kind]
    x, y, queries = x[::5], y[::5], 500
    oracle = torchattacks.Square(network, eps=LINF, n_queries=queries, resc_schedule=False)
    # torchattacks draws one square for the whole batch, and so does this switch of ours.
    with_our_squares(oracle, lambda part: rows_of(part, x), channels=3, drawn_for=0)

    theirs = network(oracle(x, y)).argmax(dim=1) == y
    attack = an_attack("square-linf", queries=queries, batch_shared_draws=True)
    ours = attack(network, x, y, radius=LINF)

    clean = int((ours.clean_prediction == y).sum())
    assert 5 < int(theirs.sum()) < clean - 2
    assert int((ours.worst != theirs).sum()) <= 1
