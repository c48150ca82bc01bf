"""From each published form to a distilled set: pixels, labels, and a report of what was seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.datasets.base import Dataset, load
from overproof.ml.distill.base import DistilledSet
from overproof.ml.formats import zca
from overproof.ml.formats.content import Target, Wishes
from overproof.ml.formats.importing import import_set
from overproof.ml.formats.spaces import apparent_space
from overproof.ml.shapes import ImageFacts
from tests.ml.formats import published
from tests.ml.formats.published import CLASSES, COUNT, PER_CLASS, SIZE, TARGET

CPU = torch.device("cpu")


def taken(
    path: Path, target: Target = TARGET, dataset: Dataset | None = None, **wishes: Any
) -> tuple[DistilledSet, dict[str, Any]]:
    into = path.parent / "imported"
    facts = import_set(path, into, target, Wishes(**wishes), dataset)
    return DistilledSet.read(into, target.facts), facts


def assert_pixels(found: DistilledSet, expected: Tensor) -> None:
    assert torch.allclose(found.images, expected, atol=1e-5)
    assert torch.equal(found.labels, published.classes())


# ---- each form ---------------------------------------------------------------------------------


def test_dc_gives_the_last_set_denormalised_as_its_code_normalised(tmp_path: Path) -> None:
    found, facts = taken(published.write_dc(tmp_path))

    assert_pixels(found, published.pixels(0))
    assert (facts["form"], facts["space"], facts["labels"]) == ("dc", "normalised", "classes")
    assert facts["std"] == (0.2023, 0.1994, 0.2010)
    assert (facts["images"], facts["images_per_class"]) == (COUNT, PER_CLASS)
    assert facts["notes"] == ["set 1 of 2 was taken; --item chooses another"]


def test_dc_gives_any_of_its_sets(tmp_path: Path) -> None:
    found, _ = taken(published.write_dc(tmp_path, sets=3), item=0)

    assert_pixels(found, published.pixels(2))
    with pytest.raises(InvalidData, match="has 3 sets, none of number 3"):
        taken(published.write_dc(tmp_path, sets=3), item=3)


@pytest.mark.parametrize("parts", [1, 3])
def test_mtt_gives_its_images_whole_or_in_parts(tmp_path: Path, parts: int) -> None:
    found, facts = taken(published.write_mtt(tmp_path, parts=parts))

    assert_pixels(found, published.pixels())
    assert facts["form"] == "mtt"
    assert facts["learning_rate"] is None
    assert "its log alone" in facts["notes"][0]


def test_mtt_takes_labels_stored_as_floats_and_a_learning_rate_from_its_log(tmp_path: Path) -> None:
    published.write_mtt(tmp_path, labels=published.classes().float())

    found, facts = taken(tmp_path / "images_best.pt", learning_rate=0.03)

    assert_pixels(found, published.pixels())
    assert found.learning_rate == 0.03
    assert facts["notes"] == []


def test_tesla_probabilities_become_logits_of_the_same_softmax(tmp_path: Path) -> None:
    probabilities = published.logits().softmax(dim=1)
    probabilities[0] = torch.tensor([0.75, 0.25, 0.0])

    found, facts = taken(published.write_mtt(tmp_path, labels=probabilities))

    assert facts["labels"] == "probabilities"
    assert torch.allclose(found.targets, probabilities, atol=1e-6)


def test_datm_brings_logits_and_its_learning_rate(tmp_path: Path) -> None:
    found, facts = taken(published.write_datm(tmp_path, published.normalised(published.pixels())))

    assert (facts["form"], facts["labels"]) == ("datm", "logits")
    assert found.learning_rate == pytest.approx(0.02)
    assert found.logits is not None
    assert torch.equal(found.logits, published.logits())
    assert_pixels(found, published.pixels())


@pytest.mark.parametrize("factor", [1, 2])
def test_idc_canvases_are_decoded_by_the_factor_of_their_folder(
    tmp_path: Path, factor: int
) -> None:
    found, facts = taken(published.write_idc(tmp_path, factor))

    assert_pixels(found, published.pixels())
    assert facts["space"] == "unit"
    assert facts["training_images"] == COUNT * factor**2 == len(found.decoded().images)


def test_idc_without_a_factor_asks_for_it(tmp_path: Path) -> None:
    torch.save([published.pixels(), published.classes()], tmp_path / "data.pt")

    with pytest.raises(InvalidData, match="give --canvas"):
        taken(tmp_path / "data.pt")
    assert taken(tmp_path / "data.pt", canvas=2)[0].canvas_factor == 2


def test_idm_file_of_a_gpu_is_read_without_one(tmp_path: Path) -> None:
    found, facts = taken(published.write_idm(tmp_path))

    assert_pixels(found, published.pixels())
    assert found.images.device.type == "cpu"
    assert (facts["form"], facts["canvas_factor"]) == ("idm", 2)


def test_idm_tiles_are_those_of_its_own_decoding(tmp_path: Path) -> None:
    """Top left, bottom left, top right, bottom right, doubled bilinearly, as its code has it."""
    found, _ = taken(published.write_idm(tmp_path))
    canvas = published.pixels()[:1]
    half = SIZE // 2
    corners = [canvas[..., r : r + half, c : c + half] for c in (0, half) for r in (0, half)]
    theirs = torch.cat(
        [torch.nn.functional.interpolate(each, scale_factor=2, mode="bilinear") for each in corners]
    )

    ours = found.decoded().images[:4]

    assert torch.allclose(ours[[0, 2, 1, 3]], theirs, atol=1e-5)


def test_idm_without_augmentation_is_plain(tmp_path: Path) -> None:
    found, _ = taken(published.write_idm(tmp_path, augmented=False))

    assert found.canvas_factor == 1


def test_dd_gives_its_last_step_once_its_statistics_are_named(tmp_path: Path) -> None:
    path = published.write_dd(tmp_path)

    with pytest.raises(InvalidData, match="nobody knows by what mean and deviation for cifar-10"):
        taken(path)
    found, facts = taken(path, normalisation="dc")

    assert_pixels(found, published.pixels(0))
    assert facts["form"] == "dd"
    assert found.learning_rate == pytest.approx(0.03)


@pytest.mark.parametrize("is_normalised", [True, False])
def test_dc_bench_says_by_its_name_whether_it_is_normalised(
    tmp_path: Path, is_normalised: bool
) -> None:
    found, facts = taken(published.write_dc_bench(tmp_path, is_normalised=is_normalised))

    assert_pixels(found, published.pixels())
    assert facts["form"] == "dc-bench"
    assert facts["space"] == ("normalised" if is_normalised else "unit")


def test_npz_of_bytes_with_channels_last_is_read(tmp_path: Path) -> None:
    found, facts = taken(published.write_npz(tmp_path))

    assert torch.allclose(found.images, published.pixels(), atol=0.51 / 255)
    assert facts["form"] == "npz"


def test_kip_is_refused_since_nobody_can_undo_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"set of KIP.*cannot be brought back"):
        taken(published.write_npz(tmp_path, "kip_cifar10.npz"))


@pytest.mark.parametrize("pattern", [published.SRE2L, published.RDED, published.D4M])
def test_folders_give_the_class_in_their_name(tmp_path: Path, pattern: str) -> None:
    found, facts = taken(published.write_folder(tmp_path / "images", pattern))

    levels = (found.images[:, 0, 0, 0] * 255).round().int().tolist()
    assert levels == [0, 1, 10, 11, 20, 21]
    assert facts["form"] == "image-folder"
    assert facts["notes"] == ["classes are the numbers of the folders"]


def test_unpadded_folders_of_many_classes_are_not_sorted_as_text(tmp_path: Path) -> None:
    target = Target(dataset="cifar-100", facts=_facts(classes=12))

    found, _ = taken(published.write_folder(tmp_path / "d4m", published.D4M, 12), target)

    levels = (found.images[:, 0, 0, 0] * 255).round().int()
    assert levels.tolist() == [10 * c + i for c in range(12) for i in range(PER_CLASS)]
    assert found.labels.tolist() == [c for c in range(12) for _ in range(PER_CLASS)]


def test_folders_with_other_names_are_classes_in_their_order(tmp_path: Path) -> None:
    for c, name in enumerate(("ant", "bee", "cat")):
        published.write_folder(tmp_path / "images", f"{name}/{{c}}{{i}}.png", 1 + c)
        for wrong in (tmp_path / "images" / name).glob("*.png"):
            if not wrong.name.startswith(str(c)):
                wrong.unlink()

    found, facts = taken(tmp_path / "images")

    assert (found.images[:, 0, 0, 0] * 255).round().int().tolist() == [0, 1, 10, 11, 20, 21]
    assert facts["notes"] == ["classes are the folders in the order of their names"]


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ("new005", "not numbered 0 … 2, each once"),
        ("new1", "not numbered 0 … 2, each once"),
        ("zebra", "lies in the folder of class"),
    ],
)
def test_folders_whose_numbers_are_wrong_are_refused(
    tmp_path: Path, renamed: str, message: str
) -> None:
    root = published.write_folder(tmp_path / "images", published.SRE2L)
    (root / "new000").rename(root / renamed)

    with pytest.raises(InvalidData, match=message):
        taken(root)


def test_images_are_scaled_when_asked(tmp_path: Path) -> None:
    target = Target(dataset="cifar-10", facts=_facts(size=4))
    root = published.write_folder(tmp_path / "images", published.RDED)

    with pytest.raises(InvalidData, match="scale image files by --size"):
        taken(root, target)
    found, _ = taken(root, target, size=4)

    assert found.images.shape == (COUNT, 3, 4, 4)


# ---- spaces ------------------------------------------------------------------------------------


def test_cifar_100_of_mtt_is_normalised_as_cifar_10_and_of_dc_by_its_own(tmp_path: Path) -> None:
    target = Target(dataset="cifar-100", facts=TARGET.facts)
    (tmp_path / "mtt").mkdir()

    _, dc = taken(published.write_dc(tmp_path), target)
    _, mtt = taken(published.write_mtt(tmp_path / "mtt"), target)

    assert dc["mean"] == (0.5071, 0.4866, 0.4409)
    assert mtt["mean"] == (0.4914, 0.4822, 0.4465)


def test_data_set_without_published_statistics_asks_for_them(tmp_path: Path) -> None:
    target = Target(dataset="mine", facts=TARGET.facts)
    path = published.write_dc(tmp_path)

    with pytest.raises(InvalidData, match=r"give --normalisation .* or --mean and --std"):
        taken(path, target)
    own, facts = taken(path, target, normalisation="own")
    given, _ = taken(path, target, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

    assert facts["mean"] == (0.5, 0.5, 0.5)
    assert torch.equal(own.images, given.images)
    assert torch.allclose(own.images, published.normalised(published.pixels()) / 4 + 0.5, atol=1e-5)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"normalisation": "pytorch"}, "no normalisation is called 'pytorch'; known: dc, mtt"),
        ({"mean": (0.5,), "std": (0.2,)}, "--mean and --std need 3 numbers each"),
        ({"mean": (0.5,) * 3}, "--mean and --std need 3 numbers each"),
        ({"mean": (0.5,) * 3, "std": (0.2, 0.2, 0.0)}, "deviations above 0"),
        ({"mean": (9.0,) * 3, "std": (0.2,) * 3}, "another space or normalisation must be meant"),
    ],
)
def test_statistics_that_cannot_be_meant_are_refused(
    tmp_path: Path, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidData, match=message):
        taken(published.write_dc(tmp_path), **wishes)


def test_pixels_where_the_form_is_normalised_are_refused_until_named(tmp_path: Path) -> None:
    torch.save({"data": [[published.pixels(), published.classes()]]}, tmp_path / "res_x.pt")

    with pytest.raises(InvalidData, match=r"should be normalised, its values look pixels in \[0"):
        taken(tmp_path / "res_x.pt")
    assert_pixels(taken(tmp_path / "res_x.pt", space="unit")[0], published.pixels())


def test_normalised_values_where_the_form_has_pixels_are_refused(tmp_path: Path) -> None:
    torch.save([published.normalised(published.pixels()), published.classes()], tmp_path / "d.pt")

    with pytest.raises(InvalidData, match="its values look normalised; say which by --space"):
        taken(tmp_path / "d.pt", format="idc", canvas=1)


def test_values_of_a_run_that_diverged_are_refused(tmp_path: Path) -> None:
    torch.save([60 * published.pixels(), published.classes()], tmp_path / "data.pt")

    with pytest.raises(InvalidData, match="has diverged"):
        taken(tmp_path / "data.pt", canvas=1, space="normalised")


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        (0.47, 0.25, "unit"),  # photographs
        (0.13, 0.31, "unit"),  # digits on black
        (0.0, 1.0, "normalised"),
        (-0.3, 1.6, "normalised"),  # far from where its optimisation began
        (0.01, 0.35, "zca"),
        (0.4, 5.0, None),
        (3.0, 0.1, None),
    ],
)
def test_values_speak_for_a_space_or_for_none(
    mean: float, std: float, expected: str | None
) -> None:
    values = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * std + mean
    if expected == "unit":  # what optimisation adds beyond [0, 1]
        values = values.clamp(-0.1, 1.1)

    assert apparent_space(values) == expected


# ---- whitening ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load(DatasetSpec(name="digits"), None)


@pytest.fixture
def whitened(tmp_path: Path, digits: Dataset) -> tuple[Path, Tensor, Tensor, Tensor]:
    """A DATM set of real digits, whitened by the published formula in another way of computing.

    Returns:
        Its folder, the pixels, the mean and the transform.
    """
    train = digits.train_images.flatten(1).double() / 255
    mean = train.mean(dim=0)
    centred = train - mean
    u, s, _ = torch.linalg.svd(centred.T @ centred / (len(train) - 1))
    transform = u @ torch.diag((s + 0.1) ** -0.5) @ u.T
    order = torch.cat([(digits.train_labels == c).nonzero()[:2, 0] for c in range(10)])
    pixels = digits.train_images[order].float() / 255
    z = ((pixels.flatten(1).double() - mean) @ transform).float().view(pixels.shape)
    torch.save(z, tmp_path / "images_best.pt")
    torch.save(torch.arange(10).repeat_interleave(2), tmp_path / "labels_best.pt")
    return tmp_path, pixels, mean, transform


def test_whitened_set_is_refused_until_the_transform_is_given(
    whitened: tuple[Path, Tensor, Tensor, Tensor], digits: Dataset
) -> None:
    folder, *_ = whitened

    with pytest.raises(InvalidData, match=r"is whitened \(ZCA\): give the transform by --zca FILE"):
        taken(folder, Target(dataset="digits", facts=digits.facts), space="zca")


def test_fitted_transform_undoes_the_published_whitening(
    whitened: tuple[Path, Tensor, Tensor, Tensor], digits: Dataset
) -> None:
    folder, pixels, _, _ = whitened
    target = Target(dataset="digits", facts=digits.facts)

    found, facts = taken(folder, target, digits, space="zca", zca="fit")

    assert torch.allclose(found.images, pixels, atol=1e-4)
    assert facts["space"] == "zca"
    assert found.whitening is not None
    assert torch.equal(found.whitening.matrix, Whitening.fit(digits.train_images, CPU).matrix)
    with pytest.raises(InvalidData, match="needs the training images"):
        taken(folder, target, space="zca", zca="fit")


@pytest.mark.parametrize(
    "names",
    [("mean", "transform"), ("mean_vector", "transform_matrix"), ("mean_vector", "transform_inv")],
)
def test_transform_in_a_file_undoes_it_too(
    whitened: tuple[Path, Tensor, Tensor, Tensor], digits: Dataset, names: tuple[str, str]
) -> None:
    folder, pixels, mean, transform = whitened
    stored = torch.linalg.inv(transform) if names[1].endswith("inv") else transform
    torch.save({names[0]: mean[None], names[1]: stored}, folder / "zca.pt")
    target = Target(dataset="digits", facts=digits.facts)

    found, _ = taken(folder, target, space="zca", zca=str(folder / "zca.pt"))

    assert torch.allclose(found.images, pixels, atol=1e-4)


def test_transform_of_another_size_is_refused(tmp_path: Path) -> None:
    torch.save({"mean": torch.zeros(4), "inverse": torch.eye(4)}, tmp_path / "zca.pt")
    torch.save({"inverse": torch.eye(5)}, tmp_path / "bad.pt")

    with pytest.raises(InvalidData, match=r"ZCA transform of others than \(3, 8, 8\) images"):
        taken(published.write_mtt(tmp_path), space="zca", zca=str(tmp_path / "zca.pt"))
    with pytest.raises(InvalidData, match="holds no ZCA transform; it needs `mean`"):
        zca.read(tmp_path / "bad.pt", TARGET.facts)


# ---- what does not fit -------------------------------------------------------------------------


def _facts(classes: int = CLASSES, size: int = SIZE) -> ImageFacts:
    return ImageFacts(
        channels=3, size=(size, size), classes=classes, mean=(0.5,) * 3, std=(0.25,) * 3
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 0, 1, 1, 2]), r"has 6 images, and labels \(5,\)"),
        (torch.tensor([0, 0, 1, 1, 2, 3]), r"classes 0 … 3; the data set has 3"),
        (torch.tensor([0, 0, 1, 1, 1, 2]), "1 images of class 2 and 3 of class 1"),
        (torch.tensor([0, 0, 1, 1, 2.5, 2]), "no whole numbers"),
        (torch.tensor([0, 0, 1, 1, float("nan"), 2]), "not finite"),
        (torch.zeros(6, 4), "labels of 4 classes, not of 3"),
        (published.logits().flip(0), "soft labels of which 33% name the class"),
        ("cat", "holds no tensor, but a str"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: Any, message: str) -> None:
    images = published.normalised(published.pixels())
    torch.save({"data": [[images, labels]]}, tmp_path / "res.pt")

    with pytest.raises(InvalidData, match=message):
        taken(tmp_path / "res.pt")


def test_images_are_put_in_the_order_of_their_classes(tmp_path: Path) -> None:
    order = torch.tensor([4, 1, 2, 0, 5, 3])
    images = published.normalised(published.pixels())[order]
    torch.save({"data": [[images, published.classes()[order]]]}, tmp_path / "res.pt")

    found, _ = taken(tmp_path / "res.pt")

    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.allclose(found.images, published.pixels()[[1, 0, 2, 3, 4, 5]], atol=1e-5)


def test_one_hot_labels_are_hard_ones(tmp_path: Path) -> None:
    rows = torch.nn.functional.one_hot(published.classes())

    found, facts = taken(published.write_mtt(tmp_path, labels=rows))

    assert (facts["labels"], found.logits) == ("one-hot", None)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: torch.save({"data": []}, path), "no list of sets under `data`"),
        (lambda path: torch.save({"data": [[1]]}, path), "no pair of images and labels"),
        (lambda path: torch.save({"weights": 1}, path), "stored dict of no known form"),
        (lambda path: torch.save([1, 2, 3], path), "stored list of no known form"),
        (
            lambda path: torch.save({"data": [[torch.full((6, 3, 8, 8), torch.nan), 1]]}, path),
            "holds NaN or infinity",
        ),
        (
            lambda path: torch.save({"data": [[torch.zeros(6, 3, 8), 1]]}, path),
            r"no images \(N, C, H, W\), but \(6, 3, 8\)",
        ),
        (
            lambda path: torch.save({"data": [[torch.zeros(6, 3, 9, 8), torch.zeros(6)]]}, path),
            r"images of \(3, 9, 8\) \(C, H, W\), cifar-10 of \(3, 8, 8\)",
        ),
    ],
)
def test_files_that_hold_no_set_are_refused(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / "file.pt")

    with pytest.raises(InvalidData, match=message) as refusal:
        taken(tmp_path / "file.pt")

    assert "\n" not in str(refusal.value)


def test_parts_of_which_one_is_missing_are_refused(tmp_path: Path) -> None:
    published.write_mtt(tmp_path, parts=3)
    (tmp_path / "images_best_1.pt").unlink()

    with pytest.raises(InvalidData, match=r"parts \[0, 2\] of images; some are missing"):
        taken(tmp_path)


def test_labels_lie_beside_or_are_named(tmp_path: Path) -> None:
    published.write_mtt(tmp_path)
    (tmp_path / "labels_best.pt").rename(tmp_path / "elsewhere.pt")

    with pytest.raises(InvalidData, match=r"labels_best\.pt does not exist; name them by --labels"):
        taken(tmp_path)
    assert_pixels(taken(tmp_path, labels=tmp_path / "elsewhere.pt")[0], published.pixels())


def test_equal_sources_give_equal_files_and_digests(tmp_path: Path) -> None:
    root = published.write_folder(tmp_path / "a" / "images", published.RDED)

    _, first = taken(root)
    content = (tmp_path / "a" / "imported").read_bytes()
    _, second = taken(root)

    assert (tmp_path / "a" / "imported").read_bytes() == content
    assert first["source"] == second["source"]
    assert np.isfinite(first["channel_means"]).all()
