"""Each transformation on cases worked out by hand, and what a draw promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from overproof.errors import ShapeError
from overproof.ml.augment.dsa import FAMILIES, Draw, apply, draw, strategy_of
from overproof.ml.seeding import generator


def _apply(family: str, x: Tensor, *numbers: float) -> Tensor:
    """`x` under one family with the given uniform numbers, the same for all images."""
    padded = torch.tensor([[*numbers, *[0.0] * (3 - len(numbers))]])
    drawn = Draw(families=(family,), choice=torch.zeros(1, dtype=torch.int64), numbers=padded)
    return apply(x, drawn)


def _images(count: int, side: int = 32, channels: int = 3) -> Tensor:
    return torch.randn((count, channels, side, side), generator=generator(1, "images"))


# ---- strategies --------------------------------------------------------------------------------


def test_auto_leaves_out_flips_where_mirroring_changes_the_class() -> None:
    assert strategy_of("auto", mirrors=True) == FAMILIES
    assert strategy_of("auto", mirrors=False) == ("color", "crop", "cutout", "scale", "rotate")


def test_named_strategy_is_taken_as_it_is() -> None:
    assert strategy_of("none", mirrors=True) == ()
    assert strategy_of("flip_crop", mirrors=False) == ("flip", "crop")
    with pytest.raises(ValueError, match="no augmentation is called 'blur'"):
        strategy_of("crop_blur", mirrors=True)


# ---- families by hand --------------------------------------------------------------------------


def test_colour_is_brightness_then_saturation_then_contrast() -> None:
    x = torch.tensor([[[[1.0, 3.0]], [[3.0, 5.0]]]])

    result = _apply("color", x, 0.75, 0.25, 0.9)

    # Brighter by 0.25: 1.25 3.25 | 3.25 5.25. Half the distance from the grey 2.25 4.25:
    # 1.75 3.75 | 2.75 4.75. 1.4 times the distance from the mean 3.25: 1.15 3.95 | 2.55 5.35.
    torch.testing.assert_close(result, torch.tensor([[[[1.15, 3.95]], [[2.55, 5.35]]]]))


def test_colour_of_middle_numbers_changes_nothing() -> None:
    x = _images(2)

    torch.testing.assert_close(_apply("color", x, 0.5, 0.5, 0.5), x)


@pytest.mark.parametrize(
    ("number", "shift"), [(0.0, -4), (0.2, -3), (0.499, 0), (0.6, 1), (0.99999994, 4)]
)
def test_crop_of_32_pixels_shifts_by_up_to_four_and_brings_in_zeros(
    number: float, shift: int
) -> None:
    x = torch.arange(32.0).view(1, 1, 32, 1).expand(1, 1, 32, 32) + 1

    result = _apply("crop", x, number, 0.499)

    expected = [i + shift + 1 if 0 <= i + shift < 32 else 0 for i in range(32)]
    assert result[0, 0, :, 7].tolist() == expected


def test_crop_shifts_rows_by_the_first_number_and_columns_by_the_second() -> None:
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 4, 4] = 1

    result = _apply("crop", x, 0.0, 0.99)

    # Side 8 reaches one pixel: row 4 is read at 4 - 1, column 4 at 4 + 1.
    assert result.nonzero().tolist() == [[0, 0, 5, 3]]


@pytest.mark.parametrize(
    ("number", "first", "last"), [(0.0, 0, 7), (0.5, 8, 23), (0.25, 0, 15), (0.99999994, 24, 31)]
)
def test_cutout_zeroes_sixteen_pixels_of_32_clipped_at_the_border(
    number: float, first: int, last: int
) -> None:
    result = _apply("cutout", torch.ones(1, 2, 32, 32), number, 0.5)

    rows = [i for i in range(32) if result[0, 0, i, 16] == 0]
    assert rows == list(range(first, last + 1))
    assert int((result == 0).sum()) == 2 * (last - first + 1) * 16


def test_cutout_of_an_odd_length_never_leaves_the_image() -> None:
    for number in torch.linspace(0, 0.9999, 50).tolist():
        result = _apply("cutout", torch.ones(1, 1, 6, 6), number, number)

        # Three pixels, at the border two.
        assert int((result == 0).sum()) in {4, 9}


@pytest.mark.parametrize(("number", "mirrored"), [(0.0, True), (0.4999, True), (0.5, False)])
def test_flip_mirrors_left_and_right_below_one_half(number: float, mirrored: bool) -> None:
    x = _images(2)

    assert torch.equal(_apply("flip", x, number), x.flip(3) if mirrored else x)


def test_scale_of_one_and_rotation_by_nothing_change_nothing() -> None:
    x = _images(2)
    one = (1 - 1 / 1.2) / (1.2 - 1 / 1.2)

    torch.testing.assert_close(_apply("scale", x, one, one), x, atol=1e-4, rtol=0)
    torch.testing.assert_close(_apply("rotate", x, 0.5), x, atol=1e-4, rtol=0)


def test_scale_by_the_largest_factor_shrinks_and_leaves_a_border_of_zeros() -> None:
    result = _apply("scale", torch.ones(1, 1, 24, 24), 0.99999994, (1 - 1 / 1.2) / (1.2 - 1 / 1.2))

    # 24 columns become 20: two at each side are empty. Rows keep their size.
    assert result[0, 0, 12, :2].abs().max() < 1e-3
    assert result[0, 0, 12, 2:22].min() > 0.999
    assert result[0, 0, :, 12].min() > 0.999


def test_rotation_by_fifteen_degrees_turns_a_ramp() -> None:
    ramp = torch.arange(33.0).sub(16).view(1, 1, 1, 33).expand(1, 1, 33, 33)

    result = _apply("rotate", ramp, 0.99999994)

    # Reading at an angle turns the slope (0, 1) into (-sin 15°, cos 15°) by row and column.
    middle = result[0, 0, 12:21, 12:21]
    angle = math.radians(15)
    torch.testing.assert_close(
        middle.diff(dim=1), torch.full((9, 8), math.cos(angle)), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        middle.diff(dim=0), torch.full((8, 9), -math.sin(angle)), atol=1e-3, rtol=0
    )


# ---- draws -------------------------------------------------------------------------------------


def test_training_draws_one_family_for_the_batch_and_numbers_for_each_image() -> None:
    drawn = draw(FAMILIES, generator(0, "step"), 64, siamese=False)

    assert drawn.choice.shape == (64,)
    assert len(set(drawn.choice.tolist())) == 1
    assert len({tuple(row) for row in drawn.numbers.tolist()}) == 64


def test_matching_draws_a_family_for_each_class() -> None:
    drawn = draw(FAMILIES, generator(0, "step"), 600, siamese=True)

    assert drawn.choice.bincount(minlength=6).min() > 60
    assert 0 <= float(drawn.numbers.min()) < float(drawn.numbers.max()) < 1


def test_equal_generators_give_equal_draws() -> None:
    first = draw(FAMILIES, generator(0, "step", 1), 10, siamese=True)
    second = draw(FAMILIES, generator(0, "step", 1), 10, siamese=True)

    assert torch.equal(first.choice, second.choice)
    assert torch.equal(first.numbers, second.numbers)


def test_without_families_nothing_changes_and_the_generator_advances_as_always() -> None:
    x = _images(4)
    idle, busy = generator(0, "step"), generator(0, "step")

    drawn = draw((), idle, 4, siamese=False)
    draw(FAMILIES, busy, 4, siamese=False)

    assert apply(x, drawn) is x
    assert torch.equal(idle.get_state(), busy.get_state())


@pytest.mark.parametrize("seed", range(4))
def test_siamese_batches_of_other_sizes_get_the_same_transformation(seed: int) -> None:
    few, many = _images(5 * 2, side=16), _images(5 * 7, side=16)
    few.view(5, 2, 3, 16, 16)[:, 0] = many.view(5, 7, 3, 16, 16)[:, 4]
    drawn = draw(FAMILIES, generator(seed, "class"), 5, siamese=True)

    small = apply(few, drawn).view(5, 2, 3, 16, 16)
    large = apply(many, drawn).view(5, 7, 3, 16, 16)

    torch.testing.assert_close(small[:, 0], large[:, 4])


def test_images_of_mixed_families_stay_in_their_order() -> None:
    x = _images(12, side=16)
    drawn = draw(FAMILIES, generator(3, "class"), 6, siamese=True)
    assert len(set(drawn.choice.tolist())) > 1

    together = apply(x, drawn)

    for group in range(6):
        alone = Draw(
            families=FAMILIES,
            choice=drawn.choice[group : group + 1],
            numbers=drawn.numbers[group : group + 1],
        )
        members = slice(2 * group, 2 * group + 2)
        torch.testing.assert_close(together[members], apply(x[members], alone))


def test_batch_that_does_not_divide_into_groups_is_refused() -> None:
    drawn = draw(FAMILIES, generator(0, "step"), 3, siamese=True)

    with pytest.raises(ShapeError, match="cannot be split into 3 groups"):
        apply(_images(4), drawn)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_by_the_pixels_is_that_of_finite_differences(family: str) -> None:
    x = _images(2, side=5, channels=2).double().requires_grad_()
    drawn = draw((family,), generator(2, family), 2, siamese=False)

    assert torch.autograd.gradcheck(lambda images: apply(images, drawn), (x,))


def test_augmentation_leaves_its_input_and_the_global_generator_alone() -> None:
    x = _images(12)
    before, state = x.clone(), torch.get_rng_state()

    apply(x, draw(FAMILIES, generator(0, "step"), 12, siamese=True))

    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
