from __future__ import annotations

import pytest

from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.spec import PluginRef
from overproof.errors import DuplicatePlugin, InvalidSpec, PluginUnavailable, UnknownPlugin


class ToyParams(Params):
    steps: int = 10
    rate: float = 0.5


def a_plugin(name: str = "toy", target: str = "json:dumps", **over: object) -> PluginInfo:
    return PluginInfo(name=name, target=target, params=ToyParams, summary="s", source="p", **over)  # type: ignore[arg-type]


@pytest.fixture
def registry() -> Registry:
    registry = Registry("toys")
    registry.add(a_plugin(aliases=("plaything",)))
    return registry


def test_reference_gets_its_proper_name_and_all_defaults(registry: Registry) -> None:
    ref = registry.canonical(PluginRef(name="plaything", params={"rate": 1}))

    assert ref == PluginRef(name="toy", params={"steps": 10, "rate": 1.0})


def test_unknown_name_gets_close_matches(registry: Registry) -> None:
    with pytest.raises(UnknownPlugin, match=r"no toys is called 'tow'; did you mean toy\?"):
        registry.get("tow")


def test_all_faulty_parameters_are_listed(registry: Registry) -> None:
    ref = PluginRef(name="toy", params={"step": 1, "rate": "fast"})

    with pytest.raises(InvalidSpec) as caught:
        registry.resolve(ref)

    assert len(caught.value.faults) == 2
    assert "step: unknown field; did you mean steps?" in caught.value.faults


@pytest.mark.parametrize("name", ["toy", "plaything"])
def test_taken_name_is_refused_with_both_targets(registry: Registry, name: str) -> None:
    with pytest.raises(DuplicatePlugin, match=r"json:dumps and os:getcwd"):
        registry.add(a_plugin(name, "os:getcwd"))


def test_target_is_imported_when_asked_for(registry: Registry) -> None:
    import json

    assert registry.load("plaything") is json.dumps


def test_missing_package_is_named(registry: Registry) -> None:
    registry.add(a_plugin("broken", "no_such_package.x:y", needs="overproof[ml]"))

    with pytest.raises(PluginUnavailable, match=r"no_such_package.*overproof\[ml\]"):
        registry.load("broken")


def test_names_are_sorted_and_filtered(registry: Registry) -> None:
    registry.add(a_plugin("abacus"))

    assert registry.names() == ["abacus", "toy"]
    assert registry.names("t*") == ["toy"]
    assert "plaything" in registry
    assert "tow" not in registry
