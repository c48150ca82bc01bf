from __future__ import annotations

import pytest
from pydantic import ValidationError

from overproof.core.threat import Norm, ThreatModel, epsilon_value


@pytest.mark.parametrize(
    ("written", "value"),
    [("8/255", 8 / 255), ("0.03", 0.03), ("1e-3", 1e-3), ("0", 0.0), ("0.5/255", 0.5 / 255)],
)
def test_epsilon_is_read_as_written(written: str, value: float) -> None:
    threat = ThreatModel(norm=Norm.LINF, epsilon=written)

    assert threat.radius == pytest.approx(value, rel=1e-12)
    assert threat.epsilon == written


def test_number_and_text_are_the_same_budget() -> None:
    assert ThreatModel.model_validate({"norm": "l2", "epsilon": 0.5}).epsilon == "0.5"


def test_bare_grey_levels_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ValidationError, match=r"did you mean 8/255\?"):
        ThreatModel.model_validate({"norm": "linf", "epsilon": 8})


def test_l2_budgets_may_exceed_one() -> None:
    assert ThreatModel.model_validate({"norm": "l2", "epsilon": 2}).radius == 2


@pytest.mark.parametrize(
    "written", ["-1/255", "8/0", "8/255/2", "eight", "nan", "inf", "", None, True, [8]]
)
def test_other_forms_are_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="8/255"):
        ThreatModel.model_validate({"norm": "linf", "epsilon": written})


def test_value_is_exact_before_rounding() -> None:
    assert epsilon_value("1/3") == 1 / 3
