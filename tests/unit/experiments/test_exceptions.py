"""Parts of a grid with other networks or another protocol."""

from __future__ import annotations

from typing import Any

import pytest

from overproof.core.states import JobKind
from overproof.errors import InvalidSpec
from overproof.experiments.planner import plan
from tests.builders import an_experiment

DEEP = {"name": "convnet", "params": {"width": 8, "depth": 3}}
DSA = {"name": "dsa", "params": {"epochs": 2}}


def groups(**over: Any) -> set[tuple[str, str | None, int, str, int | None]]:
    """Data set, method, depth of the network, protocol, depth of the matching network."""
    values = {"datasets": ["digits", "mnist"], "attacks": [], "whole_set": True} | over
    made = plan(an_experiment(**values), lambda name: "0" * 64)
    return {
        (
            group["dataset"]["name"],
            group["method"] and group["method"]["name"],
            group["network"]["params"]["depth"],
            group["protocol"]["name"],
            group["matching_network"] and group["matching_network"]["params"]["depth"],
        )
        for group in made.groups.values()
    }


def test_exception_for_a_data_set_changes_its_networks_and_what_is_matched_on() -> None:
    assert groups(exceptions=[{"datasets": "mnist", "networks": DEEP}]) == {
        ("digits", None, 2, "dc", None),
        ("digits", "random", 2, "dc", None),
        ("digits", "distribution-matching", 2, "dc", 2),
        ("mnist", None, 3, "dc", None),
        ("mnist", "random", 3, "dc", None),
        ("mnist", "distribution-matching", 3, "dc", 3),
    }


def test_exception_for_a_method_leaves_whole_sets_alone_and_later_ones_win() -> None:
    exceptions = [
        {"datasets": "mnist", "networks": DEEP, "protocol": DSA},
        {"datasets": "mnist", "methods": "dm", "protocol": "idc"},
    ]

    found = groups(exceptions=exceptions)

    assert ("mnist", "distribution-matching", 3, "idc", 3) in found
    assert ("mnist", "random", 3, "dsa", None) in found
    assert ("mnist", None, 3, "dsa", None) in found


def test_matching_network_that_is_named_stays() -> None:
    named = {"matching_network": {"name": "convnet", "params": {"width": 8, "depth": 1}}}

    found = groups(exceptions=[{"datasets": "mnist", "networks": DEEP}], **named)

    assert ("mnist", "distribution-matching", 3, "dc", 1) in found


def test_exceptions_change_no_other_unit() -> None:
    def ids(**over: Any) -> set[str]:
        made = plan(an_experiment(**over), lambda name: "0" * 64)
        return {unit.id for unit in made.units if unit.kind is not JobKind.ATTACK}

    plain = ids()
    changed = ids(exceptions=[{"methods": "dm", "protocol": DSA}])

    # both sets and both networks on random images, and both distilled sets
    assert len(plain & changed) == 6
    assert len(plain) == len(changed) == 8


@pytest.mark.parametrize(
    ("exception", "fault"),
    [
        ({"methods": "mtt", "protocol": "mtt"}, "exceptions.0.methods: trajectory-matching is"),
        ({"datasets": "svhn", "protocol": "dsa"}, "exceptions.0.datasets: svhn is none of"),
        ({"methods": "dm", "protocol": "dsaa"}, "exceptions.0.protocol: no protocols is called"),
    ],
)
def test_exceptions_that_fit_nothing_are_refused(exception: Any, fault: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        plan(an_experiment(exceptions=[exception]), lambda name: "0" * 64)

    assert caught.value.faults[0].startswith(fault)


@pytest.mark.parametrize("exception", [{"protocol": "dsa"}, {"methods": "dm"}])
def test_exceptions_say_for_what_and_change_something(exception: Any) -> None:
    with pytest.raises(ValueError, match="an exception"):
        an_experiment(exceptions=[exception])
