from __future__ import annotations

from pathlib import Path

import pytest

from overproof.core.spec import MAX_SPEC_BYTES, ExperimentSpec, JobSpec
from overproof.errors import InvalidSpec
from tests.builders import a_cell, a_network, an_experiment

VALID = """
name: tiny
datasets: digits
methods: [random]
images_per_class: 1
networks: convnet
"""


def faults_of(text: str | bytes) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        ExperimentSpec.parse(text)
    return list(caught.value.faults)


def test_bare_names_and_single_values_are_lists_of_one() -> None:
    spec = ExperimentSpec.parse(VALID)

    assert [dataset.name for dataset in spec.datasets] == ["digits"]
    assert spec.images_per_class == (1,)
    assert spec.networks[0].name == "convnet"


def test_json_is_read_as_well() -> None:
    assert ExperimentSpec.parse(an_experiment().model_dump_json()) == an_experiment()


def test_few_lines_that_stand_for_a_huge_value_are_refused_at_once() -> None:
    doubled = "".join(f"&a{i} [*a{i - 1}, *a{i - 1}], " for i in range(1, 40))
    nested = f"[&a0 [x, x], {doubled}]"

    faults = faults_of(VALID.replace("images_per_class: 1", f"images_per_class: {nested}"))

    assert all(fault.startswith("images_per_class.") for fault in faults)
    assert max(len(fault) for fault in faults) < 200


def test_every_fault_is_listed_with_its_path_and_a_suggestion() -> None:
    faults = faults_of(
        VALID.replace("methods", "metods")
        + "seeds: [0, -1]\nattacks: [{name: fgsm, epsilons: [eight], stepz: 1}]\npriority: .nan\n"
    )

    assert "metods: unknown field; did you mean methods?" in faults
    assert any(fault.startswith("seeds.1: ") for fault in faults)
    assert any(fault.startswith("attacks.0.epsilons.0: ") and "8/255" in fault for fault in faults)
    assert any(fault.startswith("attacks.0.stepz: unknown field") for fault in faults)
    assert any(fault.startswith("priority: ") for fault in faults)


@pytest.mark.parametrize("text", ["", "null", "[]", "3", "{", "a: b: c", b"\xff\xfe\x00", "\tx"])
def test_text_that_is_no_mapping_is_refused_in_one_line(text: str | bytes) -> None:
    (fault,) = faults_of(text)

    assert fault.startswith("(top level): ")
    assert "\n" not in fault


def test_two_megabytes_are_refused_before_they_are_parsed() -> None:
    (fault,) = faults_of(VALID + "#" * 2 * MAX_SPEC_BYTES)

    assert "at most" in fault


def test_yaml_cannot_make_objects() -> None:
    (fault,) = faults_of("!!python/object/apply:os.system ['true']")

    assert "YAML" in fault


def test_nothing_to_train_on_is_refused() -> None:
    (fault,) = faults_of("name: a\ndatasets: digits\nnetworks: convnet")

    assert "whole_set: true" in fault


def test_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        ExperimentSpec.read(tmp_path / "none.yaml")


def test_inputs_of_a_job_are_what_others_make() -> None:
    victim = a_network()
    cells = (a_cell(victim, "8/255"), a_cell(victim, "16/255"))

    assert JobSpec.of(cells).inputs == (victim.id,)
    assert JobSpec.of((victim,)).inputs == ()
