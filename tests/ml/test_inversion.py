"""SRe2L and CDA: statistics by hand, groups that keep to themselves, losses that fall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.taught import CurriculumParams, InversionParams, inversion_preset
from overproof.core.spec import PluginRef
from overproof.errors import InvalidSpec
from overproof.ml.distill.base import Problem
from overproof.ml.distill.inversion import Inversion, batch_norm_inputs, statistics_distance
from overproof.ml.models.base import build
from overproof.ml.seeding import generator

SHORT = {"iterations": 12, "learning_rate": 0.1, "statistics_weight": 0.1}


def an_inversion(problem: Problem, name: str = "sre2l", **over: Any) -> Inversion:
    ref = PluginRef(name=name, params=SHORT | over)
    made: Inversion = DISTILLATION.load(name)(DISTILLATION.resolve(ref), problem)
    return made


def oracle(network: nn.Module, x: Tensor) -> float:
    """Distance of statistics as the reference computes it, one group, one hook a layer."""
    terms: list[float] = []

    def hook(module: Any, entering: tuple[Tensor], _: Tensor) -> None:
        values = entering[0].detach().double().numpy()
        channels = values.shape[1]
        by_channel = values.transpose(1, 0, 2, 3).reshape(channels, -1)
        variance = by_channel.var(axis=1)  # biased, as numpy's is
        mean = by_channel.mean(axis=1)
        terms.append(
            float(
                np.sqrt(((module.running_var.double().numpy() - variance) ** 2).sum())
                + np.sqrt(((module.running_mean.double().numpy() - mean) ** 2).sum())
            )
        )

    layers = [each for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    network(x)
    for handle in handles:
        handle.remove()
    return 10 * terms[0] + sum(terms[1:])


def test_one_channel_by_hand() -> None:
    norm = nn.BatchNorm2d(1)
    norm.running_mean.fill_(1.0)  # type: ignore[union-attr]
    norm.running_var.fill_(2.0)  # type: ignore[union-attr]
    first = torch.tensor([0.0, 2.0, 4.0, 6.0]).view(2, 1, 1, 2)  # mean 3, variance 5
    second = torch.ones(2, 1, 1, 2)  # mean 1, variance 0

    far = statistics_distance(norm, torch.stack([first, second]))

    assert far.tolist() == [2.0 + 3.0, 0.0 + 2.0]


def test_distance_of_each_group_equals_hooks_on_that_group_alone(taught: Problem) -> None:
    method = an_inversion(taught, group=10)
    seen = torch.rand(3, 10, 1, 8, 8, generator=generator(0, "seen"))

    _, distance = method._losses(seen, torch.arange(10))

    network = taught.asked().network
    expected = [0.1 * oracle(network, group) for group in seen]
    torch.testing.assert_close(distance, torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_hooks_are_gone_after_a_step(taught: Problem) -> None:
    network = taught.asked().network
    with batch_norm_inputs(network) as inputs:
        network(torch.zeros(2, 1, 8, 8))
    an_inversion(taught).step(0)
    network(torch.zeros(2, 1, 8, 8))

    assert len(inputs) == 2
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_statistics_of_real_images_are_nearer_than_those_of_noise(taught: Problem) -> None:
    method = an_inversion(taught)
    pixels = taught.dataset.train_images[:100].float() / 255
    real = taught.asked().normalize(pixels).unsqueeze(0)
    noise = torch.randn(real.shape, generator=generator(0, "noise"))
    classes = torch.zeros(100, dtype=torch.int64)

    near, far = (float(method._losses(x, classes)[1]) for x in (real, noise))

    assert near < far / 4


@pytest.mark.parametrize(
    ("name", "smallest_crop", "shares"), [("sre2l", 1.0, (0.1, 0.2)), ("cda", 0.5, (0.2, 0.6))]
)
def test_loss_of_the_teacher_and_distance_of_statistics_fall(
    name: str, smallest_crop: float, shares: tuple[float, float], taught: Problem
) -> None:
    settings = {"learning_rate": 0.25, "statistics_weight": 0.3, "jitter": 1}
    method = an_inversion(taught, name, iterations=60, smallest_crop=smallest_crop, **settings)

    def losses(images: Tensor) -> list[float]:
        """Cross entropy and distance, under the views of the last iterations."""
        parts = [
            method._losses(method._seen(images, [0, 1], 0, iteration), torch.arange(10))
            for iteration in range(40, 60)
        ]
        return [float(torch.stack([each[part] for each in parts]).mean()) for part in (0, 1)]

    before = losses(method.state()["images"])
    for index in range(method.total_steps):
        method.step(index)
    after = losses(method.state()["images"])

    for share, was, now in zip(shares, before, after, strict=True):
        assert now < share * was
    made = method.result()
    right = (taught.asked()(made.images).argmax(dim=1) == made.labels).float().mean()
    assert float(right) > 0.9


def test_parts_of_the_loss_are_shown_and_images_can_be_looked_at(taught: Problem) -> None:
    method = an_inversion(taught)

    shown = method.step(0)

    assert set(shown) == {"loss", "cross_entropy", "statistics"}
    assert shown["loss"] == pytest.approx(shown["cross_entropy"] + shown["statistics"])
    assert torch.equal(method.preview(), method.result().images)


def test_first_images_of_a_larger_set_are_those_of_a_smaller_one(taught: Problem) -> None:
    def made(images_per_class: int) -> Tensor:
        method = an_inversion(replace(taught, images_per_class=images_per_class))
        for index in range(method.total_steps):
            method.step(index)
        return method.result().images.view(10, images_per_class, 64)

    torch.testing.assert_close(made(3)[:, :2], made(2), atol=1e-4, rtol=0)


def test_images_do_not_depend_on_how_many_go_through_the_teacher_at_once(taught: Problem) -> None:
    def made(rows_at_once: int) -> Tensor:
        method = an_inversion(replace(taught, rows_at_once=rows_at_once), group=4)
        for index in range(method.total_steps):
            method.step(index)
        return method.result().images

    torch.testing.assert_close(made(1), made(500), atol=1e-4, rtol=0)


def test_groups_of_classes_do_not_mix(taught: Problem) -> None:
    together, apart = an_inversion(taught, group=10), an_inversion(taught, group=5)

    together.step(0)
    apart.step(0)

    assert float(together.distance) < float(apart.distance)  # ten images are nearer to the mean
    assert not torch.equal(together.result().images, apart.result().images)


def test_blocks_are_moved_one_after_another_and_resume_in_the_middle(
    taught: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overproof.ml.distill.inversion._IMAGES_AT_ONCE", 10)
    problem = replace(taught, images_per_class=3)
    straight = an_inversion(problem, iterations=4)
    before = straight.result().images
    for index in range(6):
        straight.step(index)
    between = straight.result().images.view(10, 3, -1)
    resumed = an_inversion(problem, iterations=4)
    resumed.load_state(straight.state())
    for index in range(6, 12):
        straight.step(index)
        resumed.step(index)

    assert straight.total_steps == 12
    moved = (between != before.view(10, 3, -1)).any(dim=2).any(dim=0)
    assert moved.tolist() == [True, True, False]
    assert torch.equal(resumed.result().images, straight.result().images)
    assert torch.equal(straight.result().images.view(10, 3, -1)[:, 0], between[:, 0])


def test_pixels_never_leave_the_range_that_there_is(taught: Problem) -> None:
    method = an_inversion(taught, learning_rate=5.0)

    for index in range(4):
        method.step(index)
        images = method.state()["images"]
        low, high = taught.asked().normalize(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)).flatten()
        assert float(images.min()) == float(low)
        assert float(images.max()) == float(high)
    made = method.result().images
    assert (float(made.min()), float(made.max())) == (0.0, 1.0)


def test_curriculum_leads_from_whole_images_to_small_crops(taught: Problem) -> None:
    method = an_inversion(taught, "cda", iterations=100, smallest_crop=0.2, milestone=0.5)

    assert method.smallest_crop(0) == 1.0
    assert method.smallest_crop(25) == pytest.approx(0.6)  # half-way on the cosine
    assert method.smallest_crop(50) == method.smallest_crop(99) == 0.2
    assert an_inversion(taught, smallest_crop=0.3).smallest_crop(0) == 0.3


def test_views_of_a_group_are_one_crop_and_one_roll(taught: Problem) -> None:
    method = an_inversion(taught, smallest_crop=1.0, jitter=3)
    image = torch.rand(1, 1, 1, 8, 8, generator=generator(0, "image")).expand(2, 5, 1, 8, 8)

    seen = method._seen(image, [0, 1], 0, 7)

    for group in seen:
        assert all(torch.equal(each, group[0]) for each in group)
        rolls = [
            torch.roll(image[0, 0], (down, right), dims=(1, 2))
            for down in range(4)
            for right in range(4)
        ]
        assert any(torch.equal(group[0], rolled) for rolled in rolls)


def test_presets_are_those_of_the_scripts() -> None:
    cifar, tiny, imagenet = (inversion_preset(side, curriculum=False) for side in (32, 64, 224))
    cda = inversion_preset(64, curriculum=True)

    assert (cifar.iterations, cifar.learning_rate, cifar.statistics_weight) == (1000, 0.25, 0.01)
    assert (tiny.iterations, tiny.learning_rate, tiny.statistics_weight) == (4000, 0.1, 1.0)
    assert (imagenet.iterations, imagenet.jitter, imagenet.smallest_crop) == (4000, 32, 0.08)
    assert (cda.learning_rate, cda.statistics_weight, cda.smallest_crop) == (0.4, 0.05, 0.08)
    assert cifar.smallest_crop == 1.0


def test_teacher_without_batch_statistics_is_refused(taught: Problem) -> None:
    plain = build(
        PluginRef(name="convnet", params={"width": 4, "depth": 2}), taught.dataset.facts, 0
    )

    with pytest.raises(InvalidSpec, match="has none; give it norm: batch"):
        an_inversion(replace(taught, teacher=plain))
    with pytest.raises(InvalidSpec, match="asks a teacher; name one"):
        an_inversion(replace(taught, teacher=None))


@pytest.mark.parametrize("params", [{"smallest_crop": 0.0}, {"iterations": 0}, {"jitter": -1}])
def test_settings_that_mean_nothing_are_refused(params: dict[str, float]) -> None:
    for model in (InversionParams, CurriculumParams):
        with pytest.raises(ValueError, match="Input should be"):
            model.model_validate(params)
