"""Checks that every data set of the catalog must pass, and what loading one promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from overproof.catalog.datasets import DATASETS, dataset
from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData, MalformedArtifact, UnknownPlugin
from overproof.ml.datasets import packed
from overproof.ml.datasets.arrays import Arrays, DatasetFacts
from overproof.ml.datasets.base import load

BUNDLED = [name for name in DATASETS.names() if dataset(name).bundled_version]

FACTS = DatasetFacts(name="toy", classes=2, mean=(0.5,), std=(0.25,), mirrors=True)


def _toy() -> Arrays:
    """Six training images, two test images, each filled with its number."""
    numbers = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1)
    images = np.broadcast_to(numbers, (8, 1, 2, 3)).copy()
    labels = np.array([1, 0, 1, 0, 0, 1, 0, 1])
    return Arrays(images[:6], labels[:6], images[6:], labels[6:])


# ---- the catalog -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATASETS.names())
def test_facts_of_the_catalog_fit_together(name: str) -> None:
    info = dataset(name)

    assert len(info.mean) == len(info.std) == info.shape[0]
    assert all(0 < value < 1 for value in (*info.mean, *info.std))
    assert info.classes >= 2


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_data_set_is_what_the_catalog_says(name: str) -> None:
    info = dataset(name)

    found = load(DatasetSpec(name=name, version=info.bundled_version), None)

    for images, labels in (
        (found.train_images, found.train_labels),
        (found.test_images, found.test_labels),
    ):
        assert tuple(images.shape[1:]) == info.shape
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert len(images) == len(labels)
        assert set(labels.tolist()) == set(range(info.classes))
    pixels = found.train_images.double() / 255
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx(info.mean, abs=1e-4)
    assert pixels.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx(info.std, abs=1e-4)
    assert found.mirrors is info.mirrors
    assert found.facts.size == info.shape[1:]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_data_set_of_another_version_is_refused(name: str) -> None:
    with pytest.raises(InvalidData, match="not bundled-0; use the release"):
        load(DatasetSpec(name=name, version="bundled-0"), None)


def test_data_set_that_nothing_ships_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidData, match="overproof data add cifar-10 PATH"):
        load(DatasetSpec(name="cifar-10"), None)
    with pytest.raises(UnknownPlugin, match="did you mean digits"):
        load(DatasetSpec(name="digit"), None)


# ---- digits ------------------------------------------------------------------------------------


def test_every_digit_of_scikit_learn_is_in_exactly_one_part() -> None:
    found = load(DatasetSpec(name="digits"), None)
    levels, labels = load_digits(return_X_y=True)

    ours = torch.cat([found.train_images, found.test_images]).reshape(-1, 64).numpy()
    our_labels = torch.cat([found.train_labels, found.test_labels]).numpy()

    # 255 / 16 rounded to the nearest even is exact: level n becomes round(15.9375 n).
    theirs = np.array([round(255 * level / 16) for level in range(17)])[levels.astype(int)]
    ours = np.concatenate([ours, our_labels[:, None]], axis=1)
    theirs = np.concatenate([theirs, labels[:, None]], axis=1)
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    assert len(ours) == len(theirs) == 1797


def test_test_part_of_digits_has_36_of_each_from_the_whole_range() -> None:
    found = load(DatasetSpec(name="digits"), None)
    _, labels = load_digits(return_X_y=True)

    assert found.test_labels.bincount().tolist() == [36] * 10
    assert len(found.train_images) == 1437
    # The first zero is for testing, so the first zero of the training part is the second one.
    zeros = np.flatnonzero(labels == 0)
    images = np.rint(load_digits().images * 255 / 16)
    assert np.array_equal(found.test_images[found.test_labels == 0][0, 0], images[zeros[0]])
    assert np.array_equal(found.train_images[found.train_labels == 0][0, 0], images[zeros[1]])


# ---- subsets -----------------------------------------------------------------------------------


def test_subset_takes_the_first_of_every_class_in_stored_order(tmp_path: Path) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())

    found = load(DatasetSpec(name="toy", subset_per_class=2), tmp_path / "toy")

    assert found.train_images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert found.train_labels.tolist() == [1, 0, 1, 0]
    assert len(found.test_images) == 2


def test_test_subset_leaves_training_alone(tmp_path: Path) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())

    found = load(DatasetSpec(name="toy", test_subset_per_class=1), tmp_path / "toy")

    assert found.test_images[:, 0, 0, 0].tolist() == [6, 7]
    assert len(found.train_images) == 6


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (DatasetSpec(name="toy", subset_per_class=4), "toy, training set: class 0 has 3 images"),
        (DatasetSpec(name="toy", test_subset_per_class=2), "toy, test set: class 0 has 1 images"),
    ],
)
def test_subset_larger_than_a_class_is_refused(
    tmp_path: Path, spec: DatasetSpec, message: str
) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())

    with pytest.raises(InvalidData, match=message):
        load(spec, tmp_path / "toy")


# ---- the packed form ---------------------------------------------------------------------------


def test_packed_data_set_comes_back_as_it_was(tmp_path: Path) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())

    facts, arrays = packed.read(tmp_path / "toy")

    assert facts == FACTS
    for name, expected in _toy()._asdict().items():
        found = getattr(arrays, name)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_arrays_are_packed_by_their_values_however_they_lie_in_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (8, 1, 2, 3), dtype=np.uint8)
    plain = _toy()._replace(train_images=random[:6], test_images=random[6:])
    strided = _toy()._replace(
        train_images=np.asfortranarray(random[:6]), test_images=np.asfortranarray(random[6:])
    )

    packed.write(tmp_path / "plain", FACTS, plain)
    packed.write(tmp_path / "strided", FACTS, strided)

    assert (tmp_path / "plain").read_bytes() == (tmp_path / "strided").read_bytes()
    assert np.array_equal(packed.read(tmp_path / "strided")[1].train_images, random[:6])


def test_packing_twice_gives_equal_bytes_and_leaves_no_other_file(tmp_path: Path) -> None:
    packed.write(tmp_path / "a", FACTS, _toy())
    packed.write(tmp_path / "b", FACTS, _toy())

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_file_of_another_data_set_is_refused(tmp_path: Path) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())

    with pytest.raises(InvalidData, match="the packed file of svhn holds toy"):
        load(DatasetSpec(name="svhn"), tmp_path / "toy")


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_damaged_file_is_refused_with_what_to_do(tmp_path: Path, cut: int) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())
    (tmp_path / "toy").write_bytes((tmp_path / "toy").read_bytes()[:cut])

    with pytest.raises(MalformedArtifact, match="not a packed data set; make one with"):
        packed.read(tmp_path / "toy")


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('\\"format\\":1', '\\"format\\":2', MalformedArtifact, "has format 2, this release reads"),
        ('\\"classes\\":2', '\\"classes\\":0', MalformedArtifact, "unusable facts: classes"),
        ('\\"classes\\":2', '\\"classes\\":1', InvalidData, r"labels must lie in 0 … 0, not 0 … 1"),
        (
            '\\"classes\\":2',
            '\\"classes\\":3',
            InvalidData,
            "1 of 3 classes have no training image",
        ),
        ("overproof.dataset", "overproof.weights", MalformedArtifact, "not a packed data set"),
        ("test_images", "best_images", MalformedArtifact, "not a packed data set"),
    ],
)
def test_file_with_other_contents_is_refused(
    tmp_path: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    packed.write(tmp_path / "toy", FACTS, _toy())
    content = (tmp_path / "toy").read_bytes()
    assert content.count(old.encode()) == 1
    (tmp_path / "toy").write_bytes(content.replace(old.encode(), new.encode()))

    with pytest.raises(error, match=message):
        packed.read(tmp_path / "toy")


def test_means_must_be_as_many_as_channels(tmp_path: Path) -> None:
    facts = FACTS.model_copy(update={"mean": (0.5, 0.5, 0.5)})
    packed.write(tmp_path / "toy", facts, _toy())

    with pytest.raises(InvalidData, match="not one mean and deviation for each channel"):
        packed.read(tmp_path / "toy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": np.zeros((6, 2, 3), np.uint8)}, "training images must be"),
        ({"train_images": np.zeros((6, 1, 2, 3), np.float32)}, "training images must be"),
        ({"test_images": np.zeros((2, 2, 2, 3), np.uint8)}, "test images must be"),
        ({"test_images": np.zeros((2, 1, 3, 3), np.uint8)}, "bring both to one size"),
        ({"test_labels": np.array([0])}, r"test labels must be \(2,\)"),
        ({"train_labels": np.zeros(6, np.int32)}, "int64"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, 0])}, "must lie in 0 … 1, not 0 … 2"),
        ({"train_labels": np.array([0, -1, 1, 0, 1, 0])}, "must lie in 0 … 1, not -1 … 1"),
        ({"train_labels": np.ones(6, np.int64)}, "1 of 2 classes have no training image"),
        (
            {"test_images": np.zeros((0, 1, 2, 3), np.uint8), "test_labels": np.zeros(0, np.int64)},
            "no test images",
        ),
    ],
)
def test_arrays_that_are_no_data_set_are_not_packed(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(InvalidData, match=message):
        packed.write(tmp_path / "toy", FACTS, _toy()._replace(**change))

    assert not list(tmp_path.iterdir())
