from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overproof.catalog.attacks import ATTACKS
from overproof.catalog.slices import Slice, cell_label, plugin_label
from overproof.core.semantics import Semantics
from overproof.core.spec import PluginRef


def label(attack: PluginRef) -> str:
    return plugin_label(ATTACKS, attack)


@pytest.mark.parametrize("name", ["pgd-linf", "fgsm-linf", "bim-linf"])
def test_defaults_are_left_out_of_the_label_whether_written_or_not(name: str) -> None:
    bare = PluginRef(name=name)

    assert label(bare) == label(ATTACKS.canonical(bare)) == name


def test_parameters_that_differ_come_in_the_order_of_the_catalog() -> None:
    attack = PluginRef(
        name="pgd-linf", params={"random_start": False, "step_size": "2/255", "steps": 20}
    )

    assert cell_label(attack, "8/255") == "pgd-linf[steps=20,random_start=false]@8/255"


def test_preset_stands_for_the_parameters_that_it_sets() -> None:
    attack = PluginRef(name="aa", params={"preset": "torchattacks", "queries": 50})

    assert label(ATTACKS.canonical(attack)) == "autoattack-linf[preset=torchattacks,queries=50]"
    assert label(attack) == "autoattack-linf[preset=torchattacks,queries=50]"


def test_parameters_of_another_version_are_shown_against_the_defaults() -> None:
    attack = PluginRef(name="pgd", params={"steps": 10, "step_size": "1/255", "gone": 1})

    assert label(attack) == "pgd-linf[step_size=1/255]"


def test_alias_is_shown_under_its_proper_name() -> None:
    assert label(PluginRef(name="pgd")) == "pgd-linf"


def test_attack_that_is_not_installed_shows_all_parameters() -> None:
    attack = PluginRef(name="someones-own", params={"steps": 10})

    assert cell_label(attack, "0.5") == "someones-own[steps=10]@0.5"


@given(
    steps=st.integers(1, 100),
    step_size=st.integers(1, 9).map("{}/255".format),
    epsilon=st.sampled_from(["8/255", "0.03", "4/255"]),
    semantics=st.sampled_from(Semantics),
)
def test_slice_round_trips_through_its_text(
    steps: int, step_size: str, epsilon: str, semantics: Semantics
) -> None:
    attack = PluginRef(name="pgd-linf", params={"steps": steps, "step_size": step_size})

    parsed = Slice.parse(f"{cell_label(attack, epsilon)}:{semantics}")

    assert parsed == Slice(label(attack), epsilon, semantics)
    assert Slice.parse(str(parsed)) == parsed


def test_radius_is_the_budget_in_pixel_units() -> None:
    assert Slice.parse("pgd-linf@8/255:S2").radius == pytest.approx(8 / 255)


@pytest.mark.parametrize("text", ["", "pgd-linf", "pgd-linf@8/255", "@8/255:S2", "pgd@8/255:S9"])
def test_other_text_is_no_slice(text: str) -> None:
    with pytest.raises(ValueError, match=r"no slice|not a valid"):
        Slice.parse(text)
