"""Names that planner, aggregator and reports use for the ranking of distilled sets."""

from __future__ import annotations

from enum import StrEnum

RANKING = "ranking"  # the kind of comparison


class Role(StrEnum):
    """What a group of networks is in a ranking."""

    OWN = "distilled"  # the distilled set by its own protocol
    RANDOM = "random"  # random real images, as many and by the same protocol
    HARD = "distilled-hard"  # the distilled set with hard labels
    WHOLE = "whole-hard"  # the whole training set with hard labels
    OWN_PLAIN = "distilled-plain"  # as OWN and RANDOM, without augmentation
    RANDOM_PLAIN = "random-plain"
