"""k-means of several classes at once, on the device where their features are.

Classes of different sizes lie side by side, padded to the largest: (G, N, D) points, of which the
first `counts[g]` of class g are real.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overproof.errors import ShapeError
from overproof.ml.distill.feature_selection import features_of
from overproof.ml.distill.real_images import RealImages
from overproof.ml.models.base import Normalized
from overproof.ml.seeding import generator

_VALUES_AT_ONCE = 2**28  # values of padded features held at once: 1 GiB


def representatives(
    model: Normalized,
    real: RealImages,
    count: int,
    *,
    rounds: int,
    seed: int,
    labels: Sequence[str | int],
    rows_at_once: int,
    each: int = 1,
    overall: bool = False,
) -> Tensor:
    """Images of each class that are nearest to the centres of `count` clusters of their features.

    Args:
        model: pixels → features, in the mode in which it is to be used.
        real: the images.
        count: of clusters.
        rounds: of Lloyd's algorithm.
        seed: of the random streams.
        labels: their purpose, as in `seeding.generator`.
        rows_at_once: images in one forward pass.
        each: images taken for each centre.
        overall: take as many in all, those nearest to any centre, however many are near one.

    Returns:
        (K, count · each) int64 different numbers for `real.pixels`, on the CPU.

    Raises:
        InvalidData: a class has fewer images.
    """
    real.require(count * each)
    sizes = real.counts.tolist()
    width = features_of(model, real, 0, rows_at_once).shape[1]
    at_once = max(1, _VALUES_AT_ONCE // (max(sizes) * width))
    chosen = []
    for first in range(0, len(sizes), at_once):
        counts = sizes[first : first + at_once]
        points = torch.nn.utils.rnn.pad_sequence(
            [
                features_of(model, real, first + offset, rows_at_once)
                for offset in range(len(counts))
            ],
            batch_first=True,
        )
        stream = generator(seed, *labels, first)
        centres = centres_of(points, counts, count, rounds=rounds, generator=stream)
        choose = nearest_to_any if overall else nearest_rows
        rows = choose(points, counts, centres, each).cpu()
        chosen += [real.of_class(first + offset)[of_class] for offset, of_class in enumerate(rows)]
    return torch.stack(chosen)


def centres_of(
    points: Tensor,
    counts: Sequence[int],
    clusters: int,
    *,
    rounds: int,
    generator: torch.Generator,
) -> Tensor:
    """Centres of the clusters of each class, by Lloyd's algorithm from a k-means++ start.

    A cluster that loses all its points begins anew at the point that is farthest from its centre.

    Args:
        points: (G, N, D) floating point.
        counts: how many points each class has, at least `clusters` each.
        clusters: k.
        rounds: how often points are assigned and centres moved.
        generator: on the CPU.

    Returns:
        (G, k, D) centres.

    Raises:
        ShapeError: a class has fewer points.
    """
    if clusters > min(counts):
        raise ShapeError(f"{min(counts)} points cannot form {clusters} clusters")
    is_point = _is_point(points, counts)
    centres = _spread_start(points, counts, clusters, generator)
    for _ in range(rounds):
        distance, owner = squared_distances(points, centres).min(dim=2)
        member = torch.nn.functional.one_hot(owner, clusters).to(points) * is_point.unsqueeze(2)
        sizes = member.sum(dim=1)
        means = member.transpose(1, 2) @ points / sizes.clamp(min=1).unsqueeze(2)
        # The r-th empty cluster of a class takes the r-th farthest point.
        farthest = distance.masked_fill(~is_point, -1).argsort(dim=1, descending=True)
        is_empty = sizes == 0
        rank = (is_empty.cumsum(dim=1) - 1).clamp(min=0)
        anew = _rows(points, farthest.gather(1, rank))
        centres = torch.where(is_empty.unsqueeze(2), anew, means)
    return centres


def nearest_rows(points: Tensor, counts: Sequence[int], centres: Tensor, each: int = 1) -> Tensor:
    """For each centre the nearest points that no centre before it has taken.

    Args:
        points: (G, N, D) floating point.
        counts: how many points each class has.
        centres: (G, k, D), k · each at most the smallest count.
        each: how many points a centre takes.

    Returns:
        (G, k · each) int64 rows of `points`, different within a class.
    """
    distance = squared_distances(points, centres)
    distance.masked_fill_(~_is_point(points, counts).unsqueeze(2), torch.inf)
    chosen = []
    for cluster in range(centres.shape[1]):
        for _ in range(each):
            row = distance[:, :, cluster].argmin(dim=1, keepdim=True)
            distance.scatter_(1, row.unsqueeze(2).expand(-1, -1, centres.shape[1]), torch.inf)
            chosen.append(row)
    return torch.cat(chosen, dim=1)


def nearest_to_any(points: Tensor, counts: Sequence[int], centres: Tensor, each: int = 1) -> Tensor:
    """The points nearest to any centre: as many as `nearest_rows`, but not for each centre.

    Args:
        points: (G, N, D) floating point.
        counts: how many points each class has.
        centres: (G, k, D).
        each: so many times k are taken.

    Returns:
        (G, k · each) int64 rows of `points`, different within a class, the nearest first.
    """
    distance = squared_distances(points, centres).amin(dim=2)
    distance.masked_fill_(~_is_point(points, counts), torch.inf)
    return distance.topk(centres.shape[1] * each, dim=1, largest=False).indices


def _spread_start(
    points: Tensor, counts: Sequence[int], clusters: int, generator: torch.Generator
) -> Tensor:
    """k-means++: each centre is a point drawn with chances like its squared distance."""
    u = torch.rand(len(points), clusters, generator=generator).to(points)
    last = torch.tensor(counts, device=points.device).unsqueeze(1) - 1
    is_point = _is_point(points, counts)
    mass = is_point.to(points)
    centres = []
    for cluster in range(clusters):
        sums = mass.cumsum(dim=1)
        goal = u[:, cluster : cluster + 1] * sums[:, -1:]
        # `right`: never a point without mass; the minimum is for rounding at the end.
        row = torch.minimum(torch.searchsorted(sums, goal, right=True), last)
        centre = _rows(points, row)
        distance = squared_distances(points, centre).squeeze(2) * is_point
        mass = distance if cluster == 0 else torch.minimum(mass, distance)
        centres.append(centre)
    return torch.cat(centres, dim=1)


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(G, N, D) and (G, k, D) → (G, N, k)."""
    squares = points.square().sum(dim=2, keepdim=True)
    other = centres.square().sum(dim=2).unsqueeze(1)
    return (squares + other - 2 * points @ centres.transpose(1, 2)).clamp_(min=0)


def _is_point(points: Tensor, counts: Sequence[int]) -> Tensor:
    sizes = torch.tensor(counts, device=points.device).unsqueeze(1)
    return torch.arange(points.shape[1], device=points.device) < sizes


def _rows(points: Tensor, rows: Tensor) -> Tensor:
    """(G, N, D) and (G, k) → (G, k, D)."""
    return points.gather(1, rows.unsqueeze(2).expand(-1, -1, points.shape[2]))
