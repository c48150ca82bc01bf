"""Selections and clustering against brute force on small sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, ShapeError
from overproof.ml.distill.base import Problem
from overproof.ml.distill.clustering import centres_of, nearest_rows, representatives
from overproof.ml.distill.feature_selection import FeatureSelection, features_of
from overproof.ml.distill.k_center import farthest_first
from overproof.ml.distill.real_images import RealImages
from overproof.ml.seeding import generator


def some_points(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 2, generator=generator(seed, "points"), dtype=torch.float64)


def radius(points: Tensor, rows: Sequence[int]) -> float:
    return float(torch.cdist(points, points[list(rows)]).min(dim=1).values.max())


def inertia(points: Tensor, centres: Tensor) -> float:
    return float(torch.cdist(points, centres).min(dim=1).values.square().sum())


def best_inertia(points: Tensor, clusters: int) -> float:
    """The least over all ways to assign points to clusters."""
    best = float("inf")
    for owners in itertools.product(range(clusters), repeat=len(points)):
        total = 0.0
        for cluster in set(owners):
            members = points[[owner == cluster for owner in owners]]
            total += float((members - members.mean(dim=0)).square().sum())
        best = min(best, total)
    return best


def a_selection(name: str, problem: Problem, **params: Any) -> FeatureSelection[Any]:
    ref = PluginRef(name=name, params={"epochs": 1} | params)
    made: FeatureSelection[Any] = DISTILLATION.load(name)(DISTILLATION.resolve(ref), problem)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_farthest_first_equals_a_naive_loop(seed: int) -> None:
    points = some_points(9, seed)

    chosen = farthest_first(points, 4, first=2).tolist()

    expected = [2]
    while len(expected) < 4:
        distances = [min(float((point - points[i]).norm()) for i in expected) for point in points]
        expected.append(max(range(9), key=distances.__getitem__))
    assert chosen == expected


@pytest.mark.parametrize("seed", range(5))
def test_farthest_first_covers_within_twice_the_best_radius(seed: int) -> None:
    points = some_points(9, seed)

    chosen = farthest_first(points, 3, first=0).tolist()

    best = min(radius(points, rows) for rows in itertools.combinations(range(9), 3))
    assert radius(points, chosen) <= 2 * best


def test_farthest_first_of_a_hand_made_case_takes_equal_points_once() -> None:
    points = torch.tensor([[0.0], [0.0], [1.0], [5.0]])

    assert farthest_first(points, 4, first=0).tolist() == [0, 3, 2, 1]
    with pytest.raises(ShapeError, match="5 of 4 rows"):
        farthest_first(points, 5, first=0)


def test_k_center_begins_with_the_image_nearest_to_the_mean_or_one_by_the_seed(
    problem: Problem,
) -> None:
    features = torch.tensor([[0.0], [4.0], [5.0], [9.0], [-8.0]])

    nearest = a_selection("k-center", problem).choose(features, 0)
    drawn = {
        int(a_selection("k-center", problem, first="random").choose(features, label)[0])
        for label in range(20)
    }

    assert nearest.tolist() == [0, 3]
    assert len(drawn) > 2


@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_separate_groups_are_the_best_there_are(seed: int) -> None:
    homes = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    points = homes.repeat_interleave(3, dim=0)[:8] + some_points(8, seed)

    centres = centres_of(points[None], [8], 3, rounds=10, generator=generator(seed, "start"))[0]

    assert inertia(points, centres) == pytest.approx(best_inertia(points, 3), rel=1e-9)


def test_rounds_never_raise_the_inertia_and_end_where_centres_are_means() -> None:
    points = some_points(40)

    runs = [
        centres_of(points[None], [40], 4, rounds=rounds, generator=generator(0, "start"))[0]
        for rounds in range(1, 25)
    ]

    sums = [inertia(points, centres) for centres in runs]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(sums))
    owners = torch.cdist(points, runs[-1]).argmin(dim=1)
    means = torch.stack([points[owners == cluster].mean(dim=0) for cluster in range(4)])
    assert torch.allclose(runs[-1], means)


def test_empty_clusters_begin_anew_at_far_points() -> None:
    # Three equal points draw at most one centre with mass; the others start on equal places.
    points = torch.tensor([[[0.0], [0.0], [0.0], [1.0], [9.0]]])

    for seed in range(10):
        centres = centres_of(points, [5], 3, rounds=5, generator=generator(seed, "start"))
        assert sorted(centres.flatten().tolist()) == pytest.approx([0, 1, 9])


def test_padding_is_neither_clustered_nor_chosen() -> None:
    alone = some_points(6, 1)
    points = torch.zeros(2, 9, 2, dtype=torch.float64)
    points[0], points[1, :6] = some_points(9, 2), alone
    points[1, 6:] = 1e3

    centres = centres_of(points, [9, 6], 6, rounds=5, generator=generator(0, "start"))
    rows = nearest_rows(points, [9, 6], centres)

    assert inertia(alone, centres[1]) == pytest.approx(0, abs=1e-9)
    assert sorted(rows[1].tolist()) == list(range(6))
    assert len(set(rows[0].tolist())) == 6


def test_nearest_rows_are_different_where_centres_share_their_nearest() -> None:
    points = torch.tensor([[[0.0], [3.0], [4.0]]])
    centres = torch.tensor([[[0.1], [0.2]]])

    assert nearest_rows(points, [3], centres).tolist() == [[0, 1]]


def test_more_clusters_than_points_are_refused(problem: Problem) -> None:
    with pytest.raises(ShapeError, match="4 points cannot form 5 clusters"):
        centres_of(torch.zeros(1, 6, 2), [4], 5, rounds=1, generator=generator(0, "start"))
    with pytest.raises(InvalidData, match="has 20 training images, 21 different"):
        representatives(
            problem.build(),
            RealImages(problem.dataset, problem.device),
            21,
            rounds=1,
            seed=0,
            labels=["test"],
            rows_at_once=64,
        )


def test_representatives_do_not_depend_on_how_many_rows_go_at_once(problem: Problem) -> None:
    real = RealImages(problem.dataset, problem.device)
    model = problem.build()

    made = [
        representatives(model, real, 4, rounds=5, seed=0, labels=["test"], rows_at_once=rows)
        for rows in (7, 1000)
    ]

    assert torch.equal(made[0], made[1])
    assert all(set(row.tolist()) <= set(real.of_class(k).tolist()) for k, row in enumerate(made[0]))


def test_selections_beat_random_ones_at_what_they_are_for(problem: Problem) -> None:
    real = RealImages(problem.dataset, problem.device)
    features = features_of(problem.build(), real, 3, 512).double()
    numbers = [torch.randperm(20, generator=generator(i, "random"))[:2] for i in range(20)]

    centre = a_selection("k-center", problem).choose(features, 3).tolist()
    means = a_selection("k-means", problem).choose(features, 3)

    of_random = sorted(radius(features, rows.tolist()) for rows in numbers)
    assert radius(features, centre) < of_random[3]
    of_random = sorted(inertia(features, features[rows]) for rows in numbers)
    assert inertia(features, features[means]) < of_random[3]
