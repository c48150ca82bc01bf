"""Whitening against a singular value decomposition in numpy, and as part of networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, MalformedArtifact, ShapeError
from overproof.ml.augment.zca import Whitening
from overproof.ml.checkpoints import save_weights
from overproof.ml.datasets.base import Dataset
from overproof.ml.distill.base import DistilledSet, Problem
from overproof.ml.models.base import Whitened, build
from overproof.ml.models.stored import load_network
from overproof.ml.seeding import generator

CPU = torch.device("cpu")
CONVNET = PluginRef(name="convnet", params={"width": 4, "depth": 2})


@pytest.fixture(scope="module")
def whitening(digits: Dataset) -> Whitening:
    return Whitening.fit(digits.train_images, CPU)


@pytest.fixture
def model(digits: Dataset, whitening: Whitening) -> Whitened:
    made = build(CONVNET, digits.facts, 0, whitening=whitening)
    assert isinstance(made, Whitened)
    return made


def test_two_pixels_by_hand() -> None:
    # Two images lie on one diagonal, 0.3 √2 from the mean, two on the other, 0.1 √2 from it.
    offsets = torch.tensor([[0.3, -0.3], [-0.3, 0.3], [0.1, 0.1], [-0.1, -0.1]])
    whitening = Whitening.fit((0.5 + offsets).view(4, 1, 1, 2), CPU)

    across, along = 2 * 2 * 0.3**2 / 3, 2 * 2 * 0.1**2 / 3
    a, b = (across + 0.1) ** -0.5, (along + 0.1) ** -0.5
    expected = torch.tensor([[a + b, b - a], [b - a, a + b]]) / 2
    torch.testing.assert_close(whitening.matrix, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whitening.mean, torch.full((1, 1, 2), 0.5))


@pytest.mark.parametrize("is_uint8", [True, False])
def test_matrix_equals_that_of_a_singular_value_decomposition(
    digits: Dataset, is_uint8: bool
) -> None:
    images = digits.train_images if is_uint8 else digits.train_images.float() / 255
    made = Whitening.fit(images, CPU)

    x = digits.train_images.numpy().reshape(200, 64).astype(np.float64) / 255
    covariance = np.cov(x, rowvar=False)
    u, s, _ = np.linalg.svd(covariance)
    expected = u @ np.diag(1 / np.sqrt(s + 0.1)) @ u.T
    np.testing.assert_allclose(made.matrix.numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(made.mean.numpy().ravel(), x.mean(axis=0), atol=1e-6)


def test_colour_images_that_are_not_square_are_whitened_over_all_their_values() -> None:
    images = torch.rand(300, 3, 4, 5, generator=generator(0, "images"))
    images = images.cumsum(dim=3) / 5  # neighbours depend on each other
    whitening = Whitening.fit(images, CPU)

    white = (images - whitening.mean).flatten(1) @ whitening.matrix

    covariance = torch.cov(white.T.double())
    variances = torch.linalg.eigvalsh(torch.cov(images.flatten(1).T.double()))
    expected = variances / (variances + 0.1)
    torch.testing.assert_close(torch.linalg.eigvalsh(covariance), expected, atol=1e-5, rtol=1e-4)


def test_pixels_come_back_from_whitened_space(digits: Dataset, model: Whitened) -> None:
    pixels = digits.test_images.float() / 255

    white = model.normalize(pixels)

    torch.testing.assert_close(model.denormalize(white), pixels, atol=1e-5, rtol=0)
    assert white.shape == pixels.shape
    assert float((white - pixels).abs().max()) > 0.5
    by_class = pixels.view(10, 10, 1, 8, 8)
    assert torch.equal(model.normalize(by_class).flatten(0, 1), white)


def test_gradient_by_pixels_goes_through_the_whitening(
    digits: Dataset, model: Whitened, whitening: Whitening
) -> None:
    pixels = (digits.test_images[:6].float() / 255).requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(model(pixels), digits.test_labels[:6])
    (by_pixels,) = torch.autograd.grad(loss, pixels)

    white = model.normalize(pixels.detach()).requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(model.network(white), digits.test_labels[:6])
    (by_white,) = torch.autograd.grad(loss, white)

    expected = (by_white.flatten(1) @ whitening.matrix.T).view_as(pixels)
    torch.testing.assert_close(by_pixels, expected, atol=1e-6, rtol=1e-4)


def test_network_is_stored_with_its_whitening(
    digits: Dataset, model: Whitened, whitening: Whitening, tmp_path: Path
) -> None:
    save_weights(model, tmp_path / "weights")

    loaded = load_network(CONVNET, digits.facts, tmp_path / "weights")

    pixels = digits.test_images[:5].float() / 255
    assert torch.equal(loaded(pixels), model(pixels))
    assert loaded.whitening is not None
    assert torch.equal(loaded.whitening.matrix, whitening.matrix)


def test_network_without_whitening_is_loaded_as_it_is(digits: Dataset, tmp_path: Path) -> None:
    model = build(CONVNET, digits.facts, 3)
    save_weights(model, tmp_path / "weights")

    loaded = load_network(CONVNET, digits.facts, tmp_path / "weights")

    pixels = digits.test_images[:5].float() / 255
    assert loaded.whitening is None
    assert torch.equal(loaded(pixels), model(pixels))


def test_whitening_of_other_images_is_refused(
    digits: Dataset, model: Whitened, tmp_path: Path
) -> None:
    save_weights(model, tmp_path / "weights")

    with pytest.raises(ShapeError, match=r"whitening of \(1, 8, 9\) images is .* not \(1, 8, 8\)"):
        load_network(CONVNET, replace(digits.facts, size=(8, 9)), tmp_path / "weights")
    with pytest.raises(ShapeError, match="1 images have no covariance"):
        Whitening.fit(digits.train_images[:1], CPU)


# ---- sets ------------------------------------------------------------------------------------

FOLLOWING = {
    "iterations": 1,
    "inner_steps": 2,
    "matched_epochs": 1,
    "start_epochs": 2,
    "learning_rate": 1.0,
    "zca": True,
}


@pytest.fixture
def made(problem: Problem) -> DistilledSet:
    ref = PluginRef(name="mtt", params=FOLLOWING)
    method = DISTILLATION.load("mtt")(DISTILLATION.resolve(ref), problem)
    method.step(0)
    result: DistilledSet = method.result()
    return result


@pytest.mark.parametrize("name", ["mtt", "tesla", "datm"])
def test_images_begin_as_pixels_and_are_moved_in_whitened_space(
    name: str, problem: Problem, whitening: Whitening
) -> None:
    ref = PluginRef(name=name, params=FOLLOWING | ({"threshold": 99.0} if name == "datm" else {}))
    method = DISTILLATION.load(name)(DISTILLATION.resolve(ref), problem)
    before = method.result()
    method.step(0)
    after = method.result()

    real = {image.mul(255).round().byte().numpy().tobytes() for image in before.images}
    assert real <= {image.numpy().tobytes() for image in problem.dataset.train_images}
    assert before.whitening is not None
    assert torch.equal(before.whitening.matrix, whitening.matrix)
    assert float((after.images - before.images).abs().max()) > 1e-4


def test_set_keeps_its_whitening_in_its_file(
    made: DistilledSet, problem: Problem, whitening: Whitening, tmp_path: Path
) -> None:
    made.write(tmp_path / "set")

    read = DistilledSet.read(tmp_path / "set", problem.dataset.facts)

    assert read.whitening is not None
    assert torch.equal(read.whitening.mean, whitening.mean)
    assert torch.equal(read.whitening.matrix, whitening.matrix)
    assert read.decoded().whitening is read.whitening


def test_damaged_whitening_is_refused(made: DistilledSet, problem: Problem, tmp_path: Path) -> None:
    made.write(tmp_path / "set")
    tensors = load_file(tmp_path / "set")

    def reading(name: str, **over: Tensor) -> DistilledSet:
        kept = {key: each for key, each in (tensors | over).items() if each.numel()}
        save_file(kept, tmp_path / name)
        return DistilledSet.read(tmp_path / name, problem.dataset.facts)

    with pytest.raises(MalformedArtifact, match="half of a whitening"):
        reading("half", zca_mean=torch.zeros(0))
    with pytest.raises(ShapeError, match=r"not \(1, 8, 8\) and \(63, 63\)"):
        reading("small", zca_matrix=torch.eye(63))
    with pytest.raises(InvalidData, match="whitening is not finite"):
        reading("nan", zca_matrix=torch.full((64, 64), torch.nan))
