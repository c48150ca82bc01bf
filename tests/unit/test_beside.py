"""Published numbers: as printed, apart from measurements, and only beside what is comparable."""

from __future__ import annotations

from typing import Any

import pytest

from overproof.report.beside import HEADERS, beside, cells, published
from overproof.report.standings import Measured, Standing

MEASURED = Measured(0.5, None, None, 1, 1, None)


def a_row(**over: Any) -> Standing:
    values: dict[str, Any] = {
        "group_id": "grp-1",
        "dataset": "cifar-10@1f2e3d4c",
        "method": "siamese-augmentation",
        "images_per_class": 10,
        "network": "convnet",
        "protocol": "ddr[strategy=auto] (chosen on the test set)",
        "attack": "pgd-linf",
        "epsilon": "2/255",
        "semantics": "S1",
        "clean": Measured(0.55, None, None, 1, 1, None),
        "robust": MEASURED,
        "drop_rate": MEASURED,
    }
    return Standing(**values | over)


@pytest.mark.parametrize(
    ("key", "percent"),
    [
        # table I: DC on CIFAR-10, whole sets; table IV; table VII; table VIII
        (("cifar-10", "gradient-matching", 10, "clean", None), 46.07),
        (("cifar-10", "whole set", None, "vmi-fgsm-linf", "2/255"), 14.19),
        (("cifar-100", "siamese-augmentation", 30, "autoattack-linf", "1/255"), 13.65),
        (("tiny-imagenet", "whole set", None, "autoattack-linf", "4/255"), 0.06),
        (("tiny-imagenet", "trajectory-matching", 50, "jitter-linf", "4/255"), 0.03),
        (("cifar-10", "gradient-matching", 1, "cw-linf", "8/255"), 3.32),
    ],
)
def test_numbers_are_those_of_the_paper(key: Any, percent: float) -> None:
    assert published()[key].value == pytest.approx(percent / 100)


def test_whole_tables_are_there() -> None:
    numbers = published()
    attacked = [key for key in numbers if key[3].endswith("linf") and key[3] != "autoattack-linf"]
    cascades = [key for key in numbers if key[3] == "autoattack-linf"]

    # three data sets, nine methods at five sizes and the whole set
    assert len(attacked) == 3 * (9 * 5 + 1) * 5 * 3
    assert len(cascades) == 3 * (9 * 5 + 1) * 4
    assert all(0 <= number.value < 1 for number in numbers.values())


def test_misprints_are_marked_and_not_repaired() -> None:
    odd = published()["cifar-100", "representative-matching", 50, "fgsm-linf", "8/255"]

    assert odd.value == 0.24
    assert odd.doubt is not None
    assert "misprint" in odd.doubt


def test_measured_published_and_difference_stand_together() -> None:
    found = cells(beside([a_row()]))

    assert all(len(row) == len(HEADERS) for row in found)
    assert found == [
        *(
            ["cifar-10", "siamese-augmentation", "10", "clean", "55.0", "52.93", "+2.1", "VIII"],
            [
                *("cifar-10", "siamese-augmentation", "10", "pgd-linf@2/255"),
                *("50.0", "20.01", "+30.0", "I"),
            ],
        )
    ]


@pytest.mark.parametrize(
    "over",
    [
        {"dataset": "cifar-10@1f2e3d4c (50 a class)"},
        {"method": "siamese-augmentation[iterations=20]"},
        {"network": "convnet[width=16]"},
        {"protocol": "ddr[epochs=20] (chosen on the test set)"},
        {"protocol": "dsa"},
        {"images_per_class": 2},
    ],
)
def test_what_is_not_comparable_has_nothing_beside_it(over: dict[str, Any]) -> None:
    assert beside([a_row(**over)]) == []


def test_attacks_are_compared_by_the_meaning_of_the_paper() -> None:
    worst = a_row(semantics="S2")
    cascade = a_row(attack="autoattack-linf", semantics="S2")

    assert [row.attack for row in beside([worst])] == ["clean"]
    assert [row.attack for row in beside([cascade])] == ["clean", "autoattack-linf@2/255"]
