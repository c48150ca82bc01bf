"""ImageNet-1K, its subsets and Tiny ImageNet, in small folders laid out as they are handed out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overproof.catalog.datasets import dataset
from overproof.catalog.imagenet import SUBSETS
from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.datasets import imagenet
from overproof.ml.datasets.base import load
from overproof.ml.datasets.packing import pack
from tests.ml.sources import png, write_folder, write_tar


def wnid(index: int) -> str:
    """A name that sorts as the class's index does."""
    return f"n{1440000 + 7 * index:08d}"


def image(value: int, side: int = 4) -> bytes:
    return png(np.full((3, side, side), value, dtype=np.uint8))


def jpeg(value: int, size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(buffer, "JPEG")
    return buffer.getvalue()


def tiny(classes: int, side: int = 4) -> dict[str, bytes]:
    """Files of a Tiny ImageNet; classes are listed in no order, as in the original."""
    files: dict[str, bytes] = {
        "tiny-imagenet-200/wnids.txt": b"",
        "tiny-imagenet-200/words.txt": b"",
    }
    annotations = []
    for c in reversed(range(classes)):
        train = f"tiny-imagenet-200/train/{wnid(c)}"
        files[f"{train}/{wnid(c)}_boxes.txt"] = b"0 0 1 1"
        files[f"{train}/images/{wnid(c)}_0.png"] = image(c, side)
        # The validation image of class c has a number that says nothing of the class.
        number = (11 * c + 3) % classes
        files[f"tiny-imagenet-200/val/images/val_{number}.png"] = image(c, side)
        annotations.append(f"val_{number}.png\t{wnid(c)}\t0\t32\t44\t62")
    files["tiny-imagenet-200/val/val_annotations.txt"] = "\n".join(annotations).encode()
    files["tiny-imagenet-200/test/images/test_0.png"] = image(255, side)
    return files


def kaggle(classes: int) -> dict[str, bytes]:
    """Files of an ImageNet-1K with flat validation images."""
    files = {}
    lines = ["ImageId,PredictionString"]
    for c in range(classes):
        for i in range(2):
            files[f"ILSVRC/train/{wnid(c)}/{wnid(c)}_{i}.png"] = image(10 * c + i)
        files[f"ILSVRC/val/ILSVRC2012_val_{classes - c:08d}.png"] = image(10 * c + 5)
        lines.append(f"ILSVRC2012_val_{classes - c:08d},{wnid(c)} 85 1 499 272 {wnid(c)} 0 0 1 1")
    files["ILSVRC/LOC_val_solution.csv"] = "\n".join(lines).encode()
    return files


def by_class(classes: int) -> dict[str, bytes]:
    files = {}
    for c in range(classes):
        files[f"train/{wnid(c)}/a.png"] = image(c % 256, 1)
        files[f"val/{wnid(c)}/b.png"] = image(c % 256, 1)
    return files


def test_labels_of_tiny_imagenet_come_from_its_annotations(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", tiny(7))

    found = imagenet.read(source, None)

    assert imagenet.has_annotations(source)
    assert found.train_images[:, 0, 0, 0].tolist() == list(range(7)) == found.train_labels.tolist()
    assert found.test_images[:, 0, 0, 0].tolist() == list(range(7)) == found.test_labels.tolist()


def test_tiny_imagenet_is_added_under_its_name_from_a_folder_or_an_archive(tmp_path: Path) -> None:
    files = tiny(200, side=64)

    facts = pack("tiny-imagenet", write_folder(tmp_path / "source", files), tmp_path / "a")
    pack("tiny-imagenet", write_tar(tmp_path / "source.tar", files), tmp_path / "b")

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (facts["classes"], facts["shape"]) == (200, [3, 64, 64])
    assert facts["mean"] == [0.485, 0.456, 0.406]
    found = load(DatasetSpec(name="tiny-imagenet"), tmp_path / "a")
    assert found.test_images[:, 0, 0, 0].tolist() == list(range(200))


def test_labels_of_imagenet_come_from_its_solution(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", kaggle(5))

    found = imagenet.read(source, None)

    assert imagenet.has_annotations(source)
    assert found.train_images[:, 0, 0, 0].tolist() == [10 * c + i for c in range(5) for i in (0, 1)]
    assert found.test_images[:, 0, 0, 0].tolist() == [5, 15, 25, 35, 45]
    assert found.test_labels.tolist() == list(range(5))


def test_first_training_images_of_a_class_are_taken(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", kaggle(3))

    found = imagenet.read(source, None, per_class=1)

    assert found.train_images[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert len(found.test_images) == 3


@pytest.fixture(scope="module")
def all_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tar(tmp_path_factory.mktemp("imagenet") / "source.tar", by_class(1000))


@pytest.mark.parametrize("name", SUBSETS)
def test_subset_is_taken_from_all_classes_in_the_order_of_its_list(
    all_classes: Path, name: str
) -> None:
    found = imagenet.read(all_classes, None, name=name)

    expected = [index % 256 for index in SUBSETS[name].indices]
    assert found.train_images[:, 0, 0, 0].tolist() == expected
    assert found.test_images[:, 0, 0, 0].tolist() == expected
    assert found.train_labels.tolist() == list(range(10))


@pytest.mark.parametrize("name", SUBSETS)
def test_subset_in_a_folder_of_its_own_is_the_same(tmp_path: Path, name: str) -> None:
    files = {
        f"{split}/{wnid(index)}/a.png": image(index % 256, 1)
        for index in SUBSETS[name].indices
        for split in ("train", "val")
    }

    found = imagenet.read(write_tar(tmp_path / "source.tar", files), None, name=name)

    expected = [index % 256 for index in SUBSETS[name].indices]
    assert found.train_images[:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize("name", SUBSETS)
def test_subset_lists_ten_classes_once_and_names_them(name: str) -> None:
    subset = SUBSETS[name]

    assert len(set(subset.indices)) == len(subset.class_names) == dataset(name).classes == 10
    assert dataset(name).shape == (3, 128, 128)


def test_photographs_of_any_size_become_those_of_the_catalog(tmp_path: Path) -> None:
    files = {
        f"{split}/{wnid(index)}/{split}.jpg": jpeg(20 * n, (150 + n, 140))
        for n, index in enumerate(sorted(SUBSETS["imagenette"].indices))
        for split in ("train", "val")
    }

    facts = pack("imagenette", write_folder(tmp_path / "source", files), tmp_path / "packed")

    assert facts["shape"] == [3, 128, 128]
    found = load(DatasetSpec(name="imagenette"), tmp_path / "packed")
    assert found.class_names[0] == "tench"
    levels = found.train_images.float().mean(dim=(1, 2, 3)).round().tolist()
    assert levels == pytest.approx([20 * n for n in range(10)], abs=2)


def test_folder_with_other_classes_than_the_subset_is_refused(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "source.tar", by_class(12))

    with pytest.raises(InvalidData, match="has 12 classes; imagewoof is taken from all 1000"):
        imagenet.read(source, None, name="imagewoof")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiny-imagenet-200/val/val_annotations.txt": b""}, "3 validation images have no label"),
        ({"tiny-imagenet-200/LOC_val_solution.csv": b""}, "several files of labels"),
        ({"tiny-imagenet-200/train/n09/images/a.png": image(0)}, "1 classes have only training"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    tmp_path: Path, change: dict[str, bytes], message: str
) -> None:
    source = write_folder(tmp_path / "source", tiny(3) | change)

    with pytest.raises(InvalidData, match=message):
        imagenet.read(source, None)


def test_parts_that_are_absent_are_named(tmp_path: Path) -> None:
    files = {name: content for name, content in by_class(2).items() if name.startswith("train")}

    with pytest.raises(InvalidData, match="needs images in train/<class>/, and in val/<class>/"):
        imagenet.read(write_folder(tmp_path / "source", files), None)


def test_other_data_sets_take_their_part_in_the_spec(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="specs take parts by `subset_per_class`"):
        pack("mine", write_folder(tmp_path / "s", by_class(2)), tmp_path / "p", per_class=1)
