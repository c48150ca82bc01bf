from __future__ import annotations

from overproof.core.spec import JobSpec
from overproof.results.submission import label_of
from tests.builders import a_cell, a_network


def test_label_of_one_unit_names_its_plugins_and_budget() -> None:
    victim = a_network()

    label = label_of(JobSpec.of((a_cell(victim, epsilon="8/255"),)))

    assert label == "white-box · fgsm-linf · 8/255 · digits"


def test_label_of_many_units_counts_them() -> None:
    networks = (a_network(seed=0), a_network(seed=1))

    assert label_of(JobSpec.of(networks)) == "networks · digits · convnet · dc · 2 units"
