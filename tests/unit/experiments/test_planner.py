from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from overproof.catalog.suites import SUITES
from overproof.core.spec import Unit
from overproof.core.states import JobKind
from overproof.errors import InvalidSpec
from overproof.experiments.planner import MAX_UNITS_PER_JOB, batch, plan
from tests.builders import a_cell, a_network, an_experiment, no_added_datasets

IDS = Path(__file__).parents[2] / "data" / "catalog_ids.json"


def units_of(**over: object) -> list[Unit]:
    return list(plan(an_experiment(**over), no_added_datasets).units)


def ids_of(**over: object) -> set[str]:
    return {unit.id for unit in units_of(**over)}


def test_grid_is_counted_by_hand() -> None:
    # 2 methods × 1 size × 2 seeds = 4 sets; one network each; 2 budgets each.
    kinds = Counter(unit.kind for unit in units_of())

    assert kinds == {JobKind.DISTILL: 4, JobKind.TRAIN: 4, JobKind.ATTACK: 8}


def test_needs_come_before_what_needs_them() -> None:
    seen: set[str] = set()
    for unit in units_of(whole_set=True):
        assert set(unit.needs) <= seen
        seen.add(unit.id)


def test_one_more_seed_repeats_nothing() -> None:
    assert ids_of(seeds=[0, 1]) < ids_of(seeds=[0, 1, 2])


def test_one_more_attack_repeats_nothing() -> None:
    more = [
        {"name": "fgsm", "epsilons": ["8/255", "16/255"]},
        {"name": "pgd", "epsilons": ["8/255"]},
    ]

    assert ids_of() < ids_of(attacks=more)


@pytest.mark.parametrize("unhashed", [{"priority": 5}, {"quota": 1}, {"name": "other"}])
def test_what_changes_no_result_changes_no_id(unhashed: dict[str, object]) -> None:
    assert ids_of(**unhashed) == ids_of()


def test_aliases_and_written_defaults_give_the_same_ids() -> None:
    by_name = [
        {
            "name": "distribution-matching",
            "params": {"iterations": 5, "real_batch": 16, "momentum": 0.5},
        }
    ]
    by_alias = [{"name": "dm", "params": {"iterations": 5, "real_batch": 16}}]

    assert ids_of(methods=by_name) == ids_of(methods=by_alias)


def test_whole_set_is_a_method_that_makes_nothing() -> None:
    by_method = ids_of(methods=["random", "whole"], images_per_class=[1, 10])

    assert by_method == ids_of(methods=["random"], whole_set=True, images_per_class=[1, 10])


def test_random_sets_are_shared_by_networks() -> None:
    wide = [{"name": "convnet", "params": {"width": 16, "depth": 2}}]

    shared = ids_of(methods=["random"]) & ids_of(methods=["random"], networks=wide)

    assert {unit_id[:3] for unit_id in shared} == {"dst"}
    assert len(shared) == 2


def test_groups_hold_units_that_differ_only_in_seeds() -> None:
    experiment = plan(an_experiment(), no_added_datasets)
    networks = Counter(unit.group for unit in experiment.units if unit.kind is JobKind.TRAIN)

    assert set(networks.values()) == {2}
    assert set(networks) == set(experiment.groups)
    assert {group["method"]["name"] for group in experiment.groups.values()} == {
        "random",
        "distribution-matching",
    }


def test_networks_of_several_seeds_are_one_job_and_cells_of_one_victim_another() -> None:
    jobs = batch(units_of(network_seeds=[0, 1, 2], seeds=[0], methods=["random"]))

    assert Counter((job.kind, len(job.units)) for job in jobs) == {
        (JobKind.DISTILL, 1): 1,
        (JobKind.TRAIN, 3): 1,
        (JobKind.ATTACK, 2): 3,
    }


def test_jobs_do_not_depend_on_the_order_of_units() -> None:
    units = units_of(whole_set=True)
    shuffled = random.Random(0).sample(units, len(units))

    assert batch(shuffled) == batch(units)


def test_large_batches_are_split_so_that_messages_stay_small() -> None:
    victim = a_network()
    jobs = batch([a_cell(victim, f"{i}/2550") for i in range(MAX_UNITS_PER_JOB + 1)])

    assert sorted(len(job.units) for job in jobs) == [1, MAX_UNITS_PER_JOB]
    assert max(len(job.model_dump_json()) for job in jobs) < 60_000


def test_all_unknown_names_are_reported_at_once() -> None:
    with pytest.raises(InvalidSpec) as caught:
        units_of(
            datasets="cifar10",
            methods=["dmm"],
            networks=["convnett"],
            attacks=[
                {"name": "pgdd", "epsilons": ["8/255"]},
                {"name": "pgd", "epsilons": [8], "params": {"step": 3}},
            ],
        )

    paths = [fault.split(":")[0] for fault in caught.value.faults]
    assert paths == [
        "datasets.0",
        "methods.0",
        "networks.0",
        "attacks.0",
        "attacks.1.params.step",
        "attacks.1.epsilons.0",
    ]
    assert "did you mean cifar-10? add it with `overproof data add" in caught.value.faults[0]
    assert "did you mean 8/255?" in caught.value.faults[-1]


def test_suites_stand_for_their_attacks_and_repeat_none_that_is_written_out() -> None:
    grids = [
        {"name": name, "epsilons": ["2/255", "4/255", "8/255"]} for name in ("fgsm", "pgd", "cw")
    ]

    assert ids_of(attacks=[], suites="quick") == ids_of(attacks=grids)
    assert ids_of(attacks=grids, suites=["quick"]) == ids_of(attacks=grids)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_can_be_planned(name: str) -> None:
    cells = [unit for unit in units_of(attacks=[], suites=[name]) if unit.kind is JobKind.ATTACK]

    budgets = sum(len(grid.epsilons) for grid in SUITES[name].attacks)
    assert len(cells) == 4 * budgets
    assert len({unit.id for unit in cells}) == len(cells)


def test_unknown_suite_is_a_fault_among_the_others() -> None:
    with pytest.raises(InvalidSpec) as caught:
        units_of(methods=["dmm"], suites=["ddr", "quik"])

    assert [fault.split(":")[0] for fault in caught.value.faults] == ["methods.0", "suites.1"]
    assert "did you mean quick?" in caught.value.faults[1]


def test_added_data_set_is_pinned_to_its_hash() -> None:
    units = plan(an_experiment(datasets="mine"), {"mine": "a" * 64}.get).units

    assert units[0].body["dataset"]["version"] == "a" * 64


def test_ids_of_known_specs_are_stable() -> None:
    """A change here means that stored results no longer answer the same question.

    If that is meant, raise the `semantics` of the plug-in in the same commit and store the new ids.
    """
    expected = json.loads(IDS.read_text())

    actual = {
        name: sorted(ids_of(**over))
        for name, over in {
            "tiny": {},
            "whole": {"whole_set": True, "methods": [], "seeds": [3]},
            "matching": {
                "methods": ["dc", "dsa", "herding"],
                "seeds": [0],
                "attacks": [{"name": "pgd", "epsilons": ["4/255"]}],
            },
        }.items()
    }

    assert actual == expected
