"""D4M: prototypes, and images from them by a tiny pipeline whose code path is the real one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overproof.catalog.diffusion import DiffusionParams
from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import (
    InvalidData,
    InvalidSpec,
    MalformedArtifact,
    PluginUnavailable,
    ShapeError,
)
from overproof.ml.datasets.base import Dataset
from overproof.ml.diffusion.latents import AutoencoderSpace, LatentSpace, PixelSpace, resized
from overproof.ml.diffusion.weights import digest_of, load_autoencoder, load_pipeline
from overproof.ml.distill.base import DistilledSet, Problem
from overproof.ml.distill.clustering import centres_of
from overproof.ml.distill.latent_diffusion import LatentDiffusion
from overproof.ml.distill.prototypes import Prototypes, PrototypeSearch, mini_batch_centres
from overproof.ml.distill.real_images import RealImages
from overproof.ml.seeding import generator
from tests.ml.diffusion_weights import write_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def space(weights: Path) -> AutoencoderSpace:
    return AutoencoderSpace(load_autoencoder(str(weights), None, CPU), resolution=8)


def a_search(
    space: LatentSpace, digits: Dataset, sizes: Sequence[int] = (2,), **over: Any
) -> PrototypeSearch:
    values: dict[str, Any] = {"expand": 2, "seed": 0, "device": CPU, "rows_at_once": 16}
    real = RealImages(digits, CPU)
    return PrototypeSearch(space, real, (1, (8, 8)), sizes, **values | over)


def searched(search: PrototypeSearch, classes: int = 10) -> PrototypeSearch:
    for label in range(classes):
        search.step(label)
    return search


@pytest.fixture(scope="module")
def prompted(
    digits: Dataset, space: AutoencoderSpace, tmp_path_factory: pytest.TempPathFactory
) -> Problem:
    """Two images of each digit from prototypes in the space of the weights."""
    path = tmp_path_factory.mktemp("prototypes") / "prototypes"
    searched(a_search(space, digits)).prototypes(2).write(path)
    return Problem(
        dataset=digits, network=None, images_per_class=2, seed=3, device=CPU, prototypes=path
    )


def a_method(weights: Path, problem: Problem, **over: Any) -> LatentDiffusion:
    params = {"weights": str(weights), "resolution": 8, "denoising_steps": 3} | over
    ref = PluginRef(name="d4m", params=params)
    made: LatentDiffusion = DISTILLATION.load("d4m")(DISTILLATION.resolve(ref), problem)
    return made


def run(method: LatentDiffusion) -> DistilledSet:
    for index in range(method.total_steps):
        method.step(index)
    return method.result()


# ---- k-means ---------------------------------------------------------------------------------


def test_centres_are_means_of_all_points_that_they_were_given() -> None:
    points = torch.tensor([[0.0], [10.0], [1.0], [11.0], [3.0]])

    centres = mini_batch_centres(points, 2, batch=2, generator=generator(0))

    # 0 and 10; then (0 + 1) / 2 and (10 + 11) / 2; then what is left: (0 + 1 + 3) / 3.
    assert sorted(centres.flatten().tolist()) == pytest.approx([4 / 3, 10.5])


@pytest.mark.parametrize("batch", [8, 20, 100])
def test_centres_and_inertia_are_those_of_scikit_learn_from_the_same_start(
    digits: Dataset, batch: int
) -> None:
    from sklearn.cluster import MiniBatchKMeans

    points = (digits.train_images[digits.train_labels == 3].double() / 255).flatten(1)
    first = points[:batch]
    (start,) = centres_of(first[None], [len(first)], 4, rounds=0, generator=generator(7))
    oracle = MiniBatchKMeans(4, init=start.numpy(), n_init=1, reassignment_ratio=0.0)
    for part in torch.split(points, batch):
        oracle.partial_fit(part.numpy())

    centres = mini_batch_centres(points, 4, batch=batch, generator=generator(7))

    inertia = torch.cdist(points, centres).square().min(dim=1).values.sum()
    theirs = np.square(points.numpy()[:, None] - oracle.cluster_centers_).sum(axis=2)
    assert np.allclose(centres, oracle.cluster_centers_, atol=1e-9)
    assert float(inertia) == pytest.approx(theirs.min(axis=1).sum(), rel=1e-9)


def test_batches_smaller_than_the_number_of_clusters_are_refused() -> None:
    with pytest.raises(ShapeError, match="batches of 2 of 9 points cannot form 3 clusters"):
        mini_batch_centres(torch.rand(9, 2), 3, batch=2, generator=generator(0))


# ---- prototypes ------------------------------------------------------------------------------


def test_prototypes_are_nearer_to_their_latents_than_images_drawn_at_random(
    space: AutoencoderSpace, digits: Dataset
) -> None:
    found = searched(a_search(space, digits, sizes=[4], expand=5)).prototypes(4)
    real = RealImages(digits, CPU)

    nearer = 0
    for label in range(10):
        points = space.encode(
            real.pixels(real.of_class(label)),
            torch.randn(20, 4, 4, 4, generator=generator(0, "latents", label)),
        ).flatten(1)
        own = torch.cdist(points, found.latents[label].flatten(1)).square().min(dim=1).values
        drawn = torch.stack(
            [
                torch.cdist(points, points[torch.randperm(20, generator=generator(1, n))[:4]])
                .square()
                .min(dim=1)
                .values.sum()
                for n in range(20)
            ]
        )
        nearer += bool(own.sum() < drawn.mean())
    assert nearer == 10


def test_medoids_are_different_images_of_the_class_nearest_to_its_prototypes(
    digits: Dataset,
) -> None:
    found = searched(a_search(PixelSpace(), digits, sizes=[3], expand=4)).prototypes(3)

    for label in range(10):
        points = (digits.train_images[digits.train_labels == label].float() / 255).flatten(1)
        distances = torch.cdist(found.latents[label].flatten(1), points)
        rows = found.medoids[label]
        assert len(set(rows.tolist())) == 3
        for place, row in enumerate(rows):  # two images may be equally near
            assert float(distances[place, row]) == pytest.approx(float(distances[place].min()))
            distances[:, row] = torch.inf


def test_sizes_that_are_searched_together_are_the_same_bytes_alone(
    space: AutoencoderSpace, digits: Dataset, tmp_path: Path
) -> None:
    together = searched(a_search(space, digits, sizes=[1, 3]))
    alone = searched(a_search(space, digits, sizes=[3]))

    for name, search in (("together", together), ("alone", alone)):
        search.prototypes(3).write(tmp_path / name)

    assert (tmp_path / "together").read_bytes() == (tmp_path / "alone").read_bytes()


def test_search_resumed_after_every_class_equals_the_straight_one(
    space: AutoencoderSpace, digits: Dataset
) -> None:
    straight = searched(a_search(space, digits)).prototypes(2)

    resumed = a_search(space, digits)
    for label in range(10):
        state = resumed.state()
        resumed = a_search(space, digits)
        resumed.load_state(state)
        resumed.step(label)

    assert torch.equal(resumed.prototypes(2).latents, straight.latents)
    assert torch.equal(resumed.prototypes(2).medoids, straight.medoids)


def test_latents_depend_on_the_batch_by_rounding_alone(
    space: AutoencoderSpace, digits: Dataset
) -> None:
    few, many = (
        searched(a_search(space, digits, rows_at_once=rows), classes=2).prototypes(2).latents
        for rows in (3, 64)
    )

    assert torch.allclose(few, many, atol=1e-5)
    assert float(few[0].std()) > 0.01


def test_more_prototypes_than_images_are_refused(digits: Dataset) -> None:
    with pytest.raises(InvalidData, match="class 0 has 20 training images, 21 different ones"):
        a_search(PixelSpace(), digits, sizes=[2, 21])


@pytest.mark.parametrize("size", [0, 100])
def test_truncated_prototypes_are_refused(prototypes: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut").write_bytes(prototypes.read_bytes()[:size])

    with pytest.raises(MalformedArtifact, match="holds no prototypes"):
        Prototypes.read(tmp_path / "cut", classes=10, images_per_class=2)
    with pytest.raises(MalformedArtifact, match=r"holds \(10, 2\) prototypes, not \(10, 3\)"):
        Prototypes.read(prototypes, classes=10, images_per_class=3)


# ---- images ----------------------------------------------------------------------------------


def test_images_are_pixels_of_the_data_set_and_follow_from_the_seed(
    weights: Path, prompted: Problem, tmp_path: Path
) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        made = run(a_method(weights, replace(prompted, seed=seed)))
        made.write(tmp_path / name)

    assert made.images.shape == (20, 1, 8, 8)
    assert made.images.dtype == torch.float32
    assert 0 <= float(made.images.min()) < float(made.images.max()) <= 1
    assert len({image.numpy().tobytes() for image in made.images}) == 20
    assert made.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()
    assert (tmp_path / "first").read_bytes() != (tmp_path / "other").read_bytes()


def test_image_is_what_the_pipeline_makes_of_its_prototype_class_and_noise(
    weights: Path, prompted: Problem
) -> None:
    made = run(a_method(weights, prompted)).images
    assert prompted.prototypes is not None
    latents = Prototypes.read(prompted.prototypes, classes=10, images_per_class=2).latents

    alone = load_pipeline(str(weights), None, CPU)(
        prompt="one",
        negative_prompt="cartoon, anime, painting",
        image=latents[1, 1].unsqueeze(0),
        strength=0.7,
        guidance_scale=8.0,
        num_inference_steps=3,
        generator=generator(3, "diffusion", 3),
        output_type="pt",
    ).images

    grey = (alone[0] * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=0)
    assert torch.allclose(made[3, 0], grey, atol=1e-5)
    assert not torch.allclose(made[2, 0], grey, atol=1e-2)


def test_little_noise_leaves_what_the_decoder_makes_of_the_prototype(
    weights: Path, prompted: Problem
) -> None:
    assert prompted.prototypes is not None
    latents = Prototypes.read(prompted.prototypes, classes=10, images_per_class=2).latents
    autoencoder = load_autoencoder(str(weights), None, CPU)
    with torch.no_grad():
        scaled = latents.flatten(0, 1) / autoencoder.config.scaling_factor
        decoded = (autoencoder.decode(scaled).sample / 2 + 0.5).clamp(0, 1)
    grey = (decoded * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)

    barely, fully = (
        run(a_method(weights, prompted, strength=strength, denoising_steps=steps)).images - grey
        for strength, steps in ((0.001, 1_000), (0.7, 3))
    )

    assert float(barely.abs().mean()) < 0.6 * float(fully.abs().mean())


def test_images_depend_on_how_many_go_together_by_rounding_alone(
    weights: Path, prompted: Problem
) -> None:
    one_by_one = run(a_method(weights, replace(prompted, rows_at_once=64))).images
    by_eight = run(a_method(weights, replace(prompted, rows_at_once=512))).images

    assert torch.allclose(one_by_one, by_eight, atol=1e-5)


def test_run_resumed_after_every_step_equals_the_straight_one(
    weights: Path, prompted: Problem
) -> None:
    straight = run(a_method(weights, prompted))

    resumed = a_method(weights, prompted)
    assert resumed.total_steps == 3
    for index in range(3):
        state = resumed.state()
        resumed = a_method(weights, prompted)
        resumed.load_state(state)
        resumed.step(index)

    assert torch.equal(resumed.result().images, straight.images)


def test_medoids_of_latents_are_real_images(weights: Path, prompted: Problem) -> None:
    made = run(a_method(weights, prompted, variant="medoid")).images

    assert prompted.prototypes is not None
    rows = Prototypes.read(prompted.prototypes, classes=10, images_per_class=2).medoids
    digits = prompted.dataset
    for label in range(10):
        own = digits.train_images[digits.train_labels == label].float() / 255
        assert torch.equal(made[2 * label : 2 * label + 2], own[rows[label]])


def test_stretching_keeps_the_mean_of_an_image() -> None:
    x = torch.rand(2, 3, 12, 8, generator=generator(0))

    small = resized(x, (6, 4))

    assert small.shape == (2, 3, 6, 4)
    assert torch.allclose(small.mean(dim=(2, 3)), x.mean(dim=(2, 3)), atol=0.02)


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "name a folder with a Stable Diffusion pipeline, or a hub id"),
        ({"weights": "owner/name"}, "pin the hub's weights by a commit"),
        ({"weights": "owner/name", "revision": "main"}, "pin the hub's weights by a commit"),
        ({"weights": "some folder/of/mine"}, "neither an absolute path nor a hub id"),
        ({"weights": "/weights", "revision": "main"}, "SHA-256 of its files"),
        ({"variant": "medoid", "resolution": 12}, "multiple of 8"),
    ],
)
def test_weights_that_are_missing_or_not_pinned_are_refused_by_the_spec(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        DISTILLATION.resolve(PluginRef(name="d4m", params=params))


def test_medoids_need_no_weights() -> None:
    params = DISTILLATION.resolve(PluginRef(name="d4m", params={"variant": "medoid"}))

    assert isinstance(params, DiffusionParams)
    assert params.weights is None


def test_folder_is_pinned_by_the_digest_of_its_files(
    weights: Path, prompted: Problem, tmp_path: Path
) -> None:
    digest = digest_of(weights)
    a_method(weights, prompted, revision=digest)

    with pytest.raises(InvalidData, match=f"it is {digest}"):
        a_method(weights, prompted, revision="0" * 64)


def test_folder_without_a_pipeline_is_refused_in_one_line(
    prompted: Problem, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "model_index.json").write_text("{}")

    with pytest.raises(InvalidData, match=r"holds no model_index\.json; put the folder"):
        a_method(tmp_path / "nowhere", prompted)
    with pytest.raises(InvalidData, match="are no Stable Diffusion pipeline") as caught:
        a_method(tmp_path, prompted)
    assert "\n" not in str(caught.value)


def test_missing_extra_is_named_in_one_line(
    weights: Path, prompted: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)

    with pytest.raises(PluginUnavailable, match=r"install overproof\[diffusion\]") as caught:
        a_method(weights, prompted)
    assert "\n" not in str(caught.value)


def test_classes_without_names_are_prompted_by_those_of_the_spec(
    weights: Path, prompted: Problem
) -> None:
    unnamed = replace(prompted, dataset=replace(prompted.dataset, name="my-own"))
    names = "zero; one;two;three;four;five;six;seven;eight;nine"

    with pytest.raises(InvalidSpec, match="my-own has 10 classes to prompt for, 0 names"):
        a_method(weights, unnamed)
    with pytest.raises(InvalidSpec, match="2 names are known; write them all"):
        a_method(weights, unnamed, class_names="zero;one")
    made = run(a_method(weights, unnamed, class_names=names))

    assert torch.equal(made.images, run(a_method(weights, prompted)).images)
