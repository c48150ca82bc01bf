"""Plans of experiments on distilled sets and networks that somebody brought."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from overproof.core.refs import ArtifactRef
from overproof.core.spec import Unit
from overproof.errors import InvalidSpec
from overproof.experiments.planner import ExperimentPlan, plan
from overproof.results.views import Asset
from tests.builders import an_experiment, no_added_datasets

REPLAY = "fkd"
CONVNET = {"name": "convnet", "params": {"width": 8, "depth": 2}}


def _asset(kind: str, name: str, version: str, **facts: Any) -> Asset:
    ref = ArtifactRef(key=f"assets/{kind}/{version}", sha256=version, size_bytes=1)
    return Asset(kind=kind, name=name, version=version, ref=ref, facts=facts, created_at=0.0)


STORE = {
    ("sets", "mtt"): _asset("sets", "mtt", "a" * 64, dataset="digits", images_per_class=5),
    ("weights", "old"): _asset("weights", "old", "b" * 64, dataset="digits", network=CONVNET),
    ("weights", "bare"): _asset("weights", "bare", "c" * 64),
}


def _lookup(kind: str, name: str, version: str | None) -> Asset | None:
    found = STORE.get((kind, name))
    return found if found is None or version in (None, found.version) else None


def _plan(**over: Any) -> ExperimentPlan:
    values = {"methods": [], "images_per_class": []} | over
    return plan(an_experiment(**values), no_added_datasets, _lookup)


def _tasks(units: tuple[Unit, ...]) -> Counter[str]:
    return Counter(unit.task for unit in units)


def test_imported_set_is_one_unit_with_a_network_of_every_seed_on_it() -> None:
    planned = _plan(imported="mtt", seeds=[0, 1, 2])

    assert _tasks(planned.units) == {"imported-sets": 1, "networks": 3, "white-box": 6}
    [imported] = [unit for unit in planned.units if unit.task == "imported-sets"]
    assert imported.body["imported"] == {"name": "mtt", "version": "a" * 64}
    networks = [unit for unit in planned.units if unit.task == "networks"]
    assert {unit.body["training_set"] for unit in networks} == {imported.id}
    assert sorted(unit.body["seed"] for unit in networks) == [0, 1, 2]
    [group] = planned.groups.values()
    assert group["images_per_class"] == 5
    assert group["method"] == {"name": "imported", "params": {"name": "mtt@aaaaaaaa"}}


def test_imported_set_does_not_depend_on_subsets_of_its_data_set() -> None:
    whole = _plan(imported="mtt")
    part = _plan(
        imported="mtt",
        datasets={"name": "digits", "subset_per_class": 5, "test_subset_per_class": 2},
    )

    assert whole.units[0].task == "imported-sets"
    assert whole.units[0].id == part.units[0].id
    assert {unit.body["test_set"]["test_subset_per_class"] for unit in part.units[1:]} == {2}


def test_network_that_was_brought_is_attacked_without_training() -> None:
    planned = _plan(weights=["old"], networks=[], seeds=[0, 1])

    assert _tasks(planned.units) == {"imported-networks": 1, "white-box": 2}
    victim = planned.units[0]
    assert victim.body["training_set"] is None
    assert victim.body["network"]["params"]["width"] == 8
    assert {unit.body["victim"] for unit in planned.units[1:]} == {victim.id}
    [group] = planned.groups
    assert {unit.group for unit in planned.units} == {group}


def test_what_was_brought_stands_beside_methods_and_changes_none_of_their_units() -> None:
    alone = an_experiment()
    beside = an_experiment(imported="mtt", weights="old")

    ids = {unit.id for unit in plan(alone, no_added_datasets, _lookup).units}

    assert ids < {unit.id for unit in plan(beside, no_added_datasets, _lookup).units}


def test_all_that_cannot_be_used_is_named_with_what_to_do() -> None:
    with pytest.raises(InvalidSpec) as refusal:
        _plan(
            datasets="digits",
            imported=["absent", {"name": "mtt", "version": "d" * 64}],
            weights=["bare"],
        )

    assert [fault.split(": ")[0] for fault in refusal.value.faults] == [
        "imported.0",
        "imported.1",
        "weights.0",
    ]
    assert "no distilled set absent is in the store; bring it by `overproof import" in str(
        refusal.value
    )
    assert "mtt@dddddddd" in refusal.value.faults[1]
    assert "nobody said what network bare is for" in refusal.value.faults[2]


def test_set_of_another_data_set_is_refused() -> None:
    mine = {"mine": "e" * 64}

    with pytest.raises(InvalidSpec, match="mtt was made for digits, which is none"):
        plan(
            an_experiment(datasets="mine", methods=[], imported="mtt"),
            mine.get,
            _lookup,
        )


def test_spec_that_trains_needs_a_network_and_one_that_only_attacks_does_not() -> None:
    with pytest.raises(ValueError, match="no network to train"):
        an_experiment(networks=[])
    with pytest.raises(ValueError, match="nothing to train on"):
        an_experiment(methods=[], images_per_class=[])

    assert an_experiment(networks=[], methods=[], images_per_class=[], weights="old").weights


TAUGHT = {"methods": ["rded"], "images_per_class": [1], "protocol": "fkd", "attacks": []}


def test_brought_network_is_the_teacher_and_none_is_trained() -> None:
    planned = _plan(**TAUGHT, teacher_weights="old", seeds=[0, 1])

    assert _tasks(planned.units) == {
        "imported-networks": 1,
        "synthesis": 2,
        "soft-labels": 2,
        "networks": 2,
    }
    [teacher] = [unit for unit in planned.units if unit.task == "imported-networks"]
    users = [unit for unit in planned.units if "teacher" in unit.body]
    assert {unit.body["teacher"] for unit in users} == {teacher.id}
    [group] = planned.groups.values()
    assert group["teacher_weights"] == {"name": "old", "version": "b" * 64}
    assert group["teacher"]["params"]["width"] == 8


def test_brought_network_can_be_teacher_and_victim() -> None:
    planned = _plan(**TAUGHT | {"attacks": an_experiment().attacks}, teacher_weights="old")
    both = _plan(
        **TAUGHT | {"attacks": an_experiment().attacks}, teacher_weights="old", weights="old"
    )

    [teacher] = [unit for unit in planned.units if unit.task == "imported-networks"]
    [victim] = [unit for unit in both.units if unit.task == "imported-networks"]
    assert (victim.id, teacher.group) == (teacher.id, None)
    assert victim.group in both.groups


def test_teacher_of_another_data_set_is_a_fault() -> None:
    with pytest.raises(InvalidSpec) as caught:
        _plan(**TAUGHT, teacher_weights="bare")
    assert "nobody said what network bare is for" in caught.value.faults[0]

    with pytest.raises(InvalidSpec) as caught:
        _plan(**TAUGHT, teacher_weights="none")
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["teacher_weights.0"]

    other = {"name": "mnist", "version": "d" * 64}
    with pytest.raises(InvalidSpec, match="old does not know the classes of mnist"):
        _plan(**TAUGHT, teacher_weights="old", datasets=["digits", other])


def test_brought_teacher_without_batch_statistics_cannot_be_inverted() -> None:
    with pytest.raises(InvalidSpec, match="sre2l compares batch statistics"):
        _plan(**TAUGHT | {"methods": ["sre2l"]}, teacher_weights="old")


def test_labels_that_came_with_a_set_are_replayed_without_a_teacher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_labels = _asset(
        "sets", "sre2l", "e" * 64, dataset="digits", images_per_class=5, soft_labels="f" * 64
    )
    monkeypatch.setitem(STORE, ("sets", "sre2l"), with_labels)
    replay = {"name": REPLAY, "params": {"epochs": 2}}

    replayed = _plan(imported="sre2l", protocol=replay, seeds=[0, 1], attacks=[])
    asked = _plan(imported="mtt", protocol=replay, seeds=[0], attacks=[])
    hard = _plan(imported="sre2l", seeds=[0], attacks=[])

    assert _tasks(replayed.units) == {"imported-sets": 1, "imported-labels": 1, "networks": 2}
    [labels] = [unit for unit in replayed.units if unit.task == "imported-labels"]
    assert labels.body["labels"] == {"name": "sre2l", "version": "f" * 64}
    networks = [unit for unit in replayed.units if unit.task == "networks"]
    assert {unit.body["labels"] for unit in networks} == {labels.id}
    assert all(labels.id in unit.needs for unit in networks)
    assert _tasks(asked.units)["soft-labels"] == _tasks(asked.units)["teachers"] == 1
    assert "imported-labels" not in _tasks(hard.units)


def test_networks_towards_other_labels_of_the_same_images_are_another_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay = {"name": REPLAY, "params": {"epochs": 2}}

    def groups(labels: str) -> set[str]:
        brought = _asset(
            "sets", "sre2l", "e" * 64, dataset="digits", images_per_class=5, soft_labels=labels
        )
        monkeypatch.setitem(STORE, ("sets", "sre2l"), brought)
        return set(_plan(imported="sre2l", protocol=replay, seeds=[0, 1], attacks=[]).groups)

    assert not groups("f" * 64) & groups("a" * 64)
    assert groups("f" * 64) == groups("f" * 64)
