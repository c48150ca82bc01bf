"""References of a ranking: which groups there are, with which runs, and which are shared."""

from __future__ import annotations

from typing import Any

import pytest

from overproof.catalog.protocols import without_augmentation
from overproof.core.ids import GroupId
from overproof.core.ranking import Role
from overproof.core.spec import PluginRef
from overproof.core.states import JobKind
from overproof.errors import InvalidSpec
from overproof.experiments.planner import ExperimentPlan, plan
from tests.builders import an_experiment, no_added_datasets

DDK = {"name": "ddk", "params": {"epochs": 4, "learning_rates": "0.01 0.1"}}
RANKING = {"hard": DDK, "whole": DDK}
DM = {"name": "dm", "params": {"iterations": 5, "real_batch": 16}}


def planned(**over: Any) -> ExperimentPlan:
    values = {"methods": [DM], "ranking": RANKING} | over
    return plan(an_experiment(**values), no_added_datasets)


def group_of(made: ExperimentPlan, role: Role) -> dict[str, Any]:
    (comparison,) = made.comparisons
    return dict(made.groups[comparison.groups[role]])


def seeds_of(made: ExperimentPlan, role: Role) -> list[tuple[int | None, int]]:
    """Seed of the set (None for the whole one) and of the network, of every network of a role."""
    (comparison,) = made.comparisons
    bodies = {unit.id: unit.body for unit in made.units}
    found = []
    for unit in made.units:
        if unit.group == comparison.groups[role] and unit.kind is JobKind.TRAIN:
            training_set = unit.body["training_set"]
            is_whole = isinstance(training_set, dict)
            found.append((None if is_whole else bodies[training_set]["seed"], unit.body["seed"]))
    return sorted(found, key=str)


def test_roles_differ_in_what_the_scores_compare() -> None:
    made = planned()

    facts = {
        role: (
            group["method"] and group["method"]["name"],
            group["images_per_class"],
            group["protocol"]["name"],
        )
        for role in (Role.OWN, Role.RANDOM, Role.HARD, Role.WHOLE)
        for group in [group_of(made, role)]
    }
    assert facts == {
        Role.OWN: ("distribution-matching", 1, "dc"),
        Role.RANDOM: ("random", 1, "dc"),
        Role.HARD: ("distribution-matching", 1, "ddk"),
        Role.WHOLE: (None, None, "ddk"),
    }
    (comparison,) = made.comparisons
    assert len(set(comparison.groups.values())) == 4
    assert set(comparison.groups.values()) == set(made.groups)


def test_only_the_ranked_networks_are_attacked() -> None:
    made = planned()
    (comparison,) = made.comparisons

    attacked = {unit.group for unit in made.units if unit.kind is JobKind.ATTACK}

    assert attacked == {comparison.groups[Role.OWN]}


@pytest.mark.parametrize(
    ("seeds", "network_seeds", "own", "random", "whole"),
    [
        # one network a set: run by run
        ([0, 1], [], [(0, 0), (1, 1)], [(0, 0), (1, 1)], [(None, 0), (None, 1)]),
        # one set: a fresh random set for each of its networks
        ([0], [3, 4], [(0, 3), (0, 4)], [(3, 3), (4, 4)], [(None, 3), (None, 4)]),
        (
            [0, 1],
            [3, 4],
            [(0, 3), (0, 4), (1, 3), (1, 4)],
            [(0, 3), (0, 4), (1, 3), (1, 4)],
            [(None, 3), (None, 4)],
        ),
    ],
)
def test_runs_of_the_references(
    seeds: list[int], network_seeds: list[int], own: Any, random: Any, whole: Any
) -> None:
    made = planned(seeds=seeds, network_seeds=network_seeds)

    assert seeds_of(made, Role.OWN) == seeds_of(made, Role.HARD) == own
    assert seeds_of(made, Role.RANDOM) == random
    assert seeds_of(made, Role.WHOLE) == whole


def test_methods_share_their_random_and_whole_references() -> None:
    made = planned(methods=[DM, "herding", "random"])

    random = {comparison.groups[Role.RANDOM] for comparison in made.comparisons}
    whole = {comparison.groups[Role.WHOLE] for comparison in made.comparisons}

    assert len(made.comparisons) == 2  # the baseline is not ranked against itself
    assert (len(random), len(whole)) == (1, 1)


def test_references_are_groups_that_other_experiments_know() -> None:
    ranked = planned(methods=[DM], attacks=[])
    plain = plan(an_experiment(methods=["random", DM], attacks=[]), no_added_datasets)

    assert {unit.id for unit in plain.units} < {unit.id for unit in ranked.units}
    assert set(plain.groups) < set(ranked.groups)


def test_set_of_hard_labels_in_its_own_protocol_is_one_group_in_two_roles() -> None:
    made = planned(protocol=DDK)
    (comparison,) = made.comparisons

    assert comparison.groups[Role.OWN] == comparison.groups[Role.HARD]
    assert len(made.groups) == 3


def test_pairs_with_and_without_augmentation() -> None:
    made = planned(protocol="dsa", ranking=RANKING | {"augmentation": True})

    strategies = {
        role: group_of(made, role)["protocol"]["params"]["strategy"]
        for role in (Role.OWN, Role.RANDOM, Role.OWN_PLAIN, Role.RANDOM_PLAIN)
    }
    assert strategies == {
        Role.OWN: "auto",
        Role.RANDOM: "auto",
        Role.OWN_PLAIN: "none",
        Role.RANDOM_PLAIN: "none",
    }


@pytest.mark.parametrize("name", ["fkd", "fkd-small", "fkd-tiny", "rded"])
def test_views_without_augmentation_are_the_images_as_they_are(name: str) -> None:
    made = planned(protocol=name, ranking=RANKING | {"augmentation": True})
    (comparison,) = made.comparisons
    groups = comparison.groups
    labels = {unit.id: unit.body for unit in made.units if unit.task == "soft-labels"}

    mirrors = {
        role: {
            labels[unit.body["labels"]]["mirrors"]
            for unit in made.units
            if unit.task == "networks" and unit.group == groups[role]
        }
        for role in (Role.OWN, Role.RANDOM, Role.OWN_PLAIN, Role.RANDOM_PLAIN)
    }

    assert mirrors == {
        Role.OWN: {True},
        Role.RANDOM: {True},
        Role.OWN_PLAIN: {False},
        Role.RANDOM_PLAIN: {False},
    }


def test_method_with_a_protocol_of_its_own_is_ranked_by_it() -> None:
    dsa = {"name": "dsa", "params": {"epochs": 5}}
    made = planned(exceptions=[{"methods": "dm", "protocol": dsa}])

    protocols = {role: group_of(made, role)["protocol"]["name"] for role in (Role.OWN, Role.RANDOM)}
    assert protocols == {Role.OWN: "dsa", Role.RANDOM: "dsa"}


def test_rankings_change_no_other_unit_and_no_other_group() -> None:
    with_ranking, without = planned(), planned(ranking=None)

    ids = {unit.id for unit in without.units}
    assert ids < {unit.id for unit in with_ranking.units}
    groups: set[GroupId] = set(without.groups)
    assert groups < set(with_ranking.groups)
    assert without.comparisons == ()


def test_true_stands_for_the_published_protocols() -> None:
    ranking = an_experiment(ranking=True).ranking

    assert ranking is not None
    assert ranking.hard == PluginRef(name="ddk")
    assert (ranking.whole.params["epochs"], ranking.augmentation) == (200, False)
    assert an_experiment(ranking=False).ranking is None


@pytest.mark.parametrize(
    ("over", "fault"),
    [
        ({"ranking": {"hard": "dc"}}, "ranking.hard: protocol dc may train towards soft labels"),
        ({"ranking": {"whole": "ddkk"}}, "ranking.whole: no protocols is called 'ddkk'"),
        ({"ranking": {"augmentation": True}}, "ranking.augmentation: protocol dc augments nothing"),
    ],
)
def test_rankings_that_mean_nothing_are_refused(over: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        planned(**over)

    (found,) = caught.value.faults
    assert found.startswith(fault)


@pytest.mark.parametrize("name", ["dsa", "ddk", "idc", "fkd", "rded"])
def test_protocol_without_augmentation_keeps_everything_else(name: str) -> None:
    from overproof.catalog.protocols import PROTOCOLS

    whole = PROTOCOLS.canonical(PluginRef(name=name, params={"epochs": 7}))

    plain = without_augmentation(whole)

    changed = {key for key in whole.params if whole.params[key] != plain.params[key]}
    assert changed <= {
        *("strategy", "cutmix_probability", "mixup_alpha"),
        *("mixing", "smallest_crop", "shift", "shuffled_tiles"),
    }
    assert bool(changed) == (name != "ddk")
    assert without_augmentation(plain) == plain
