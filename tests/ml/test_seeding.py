from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from overproof.ml.seeding import generator, seeded_init


def _numbers(*arguments: int | str) -> list[float]:
    seed, *labels = arguments
    assert isinstance(seed, int)
    return torch.rand(4, generator=generator(seed, *labels)).tolist()


def _layer() -> nn.Linear:
    return nn.Linear(3, 2)


def test_equal_arguments_give_equal_streams() -> None:
    assert _numbers(7, "batch", 3) == _numbers(7, "batch", 3)


@pytest.mark.parametrize(
    "other",
    [(1, "a", 3), (2, "b", 3), (2, "a", 4), (2, "a", "3"), (2, "a"), (3, "a", 2), (2, "a3")],
)
def test_streams_of_other_arguments_differ(other: tuple[int | str, ...]) -> None:
    assert _numbers(2, "a", 3) != _numbers(*other)


def test_seed_is_the_head_of_a_hash_over_seed_and_labels() -> None:
    expected = hashlib.sha256(b'[5,"real-batch",12]').digest()[:4]

    assert generator(5, "real-batch", 12).initial_seed() == int.from_bytes(expected, "big")


def test_ten_thousand_steps_have_hardly_any_equal_seeds() -> None:
    seeds = {generator(0, "step", step).initial_seed() for step in range(10_000)}

    assert len(seeds) >= 9_998


def test_initial_values_follow_from_seed_and_labels_alone() -> None:
    torch.manual_seed(1)
    first = seeded_init(_layer, 3, "network", 1)
    torch.manual_seed(2)
    second = seeded_init(_layer, 3, "network", 1)
    other = seeded_init(_layer, 3, "network", 2)

    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)


def test_initial_values_are_those_of_the_generator_of_the_same_name() -> None:
    def build() -> nn.Linear:
        layer = nn.Linear(3, 2, device="meta").to_empty(device="cpu")
        nn.init.normal_(layer.weight)
        return layer

    weight = seeded_init(build, 3, "network").weight

    assert torch.equal(weight, torch.empty(2, 3).normal_(generator=generator(3, "network")))


def test_global_generator_is_left_as_it_was_even_when_building_fails() -> None:
    before = torch.get_rng_state()

    def fail() -> nn.Linear:
        torch.rand(5)
        raise RuntimeError("no such layer")

    seeded_init(_layer, 3)
    with pytest.raises(RuntimeError, match="no such layer"):
        seeded_init(fail, 3)

    assert torch.equal(torch.get_rng_state(), before)
