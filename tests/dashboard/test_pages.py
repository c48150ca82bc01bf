from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from overproof.core.clock import SystemClock
from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.runtime.wiring import Backends
from tests.builders import an_experiment, no_added_datasets
from tests.workers import work_off

pytestmark = pytest.mark.dashboard

APP = Path(__file__).parents[2] / "dashboard" / "app.py"


def opened(page: str = "leaderboard", **query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    if page != "leaderboard":
        app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    return app


def choose(app: AppTest, label: str, value: object) -> AppTest:
    [box] = [box for box in app.selectbox if box.label == label]
    box.set_value(value).run()
    assert not app.exception
    return app


def test_leaderboard_without_results_says_how_to_get_some(backends: Backends) -> None:
    app = opened()

    assert "overproof run" in app.info[0].value


def test_leaderboard_shows_percent_of_what_was_measured(
    backends: Backends, experiment_id: str
) -> None:
    work_off(backends.repository)

    table = opened().dataframe[0].value

    # random, DM and the whole set, each in two cells
    assert len(table) == 6
    assert list(table["clean %"]) == pytest.approx([80.5] * len(table["clean %"]))
    assert list(table["robust %"]) == pytest.approx([19.5] * len(table["robust %"]))
    assert set(table["networks"]) == {"2 of 2"}


def test_leaderboard_marks_doubtful_numbers_and_says_why(
    backends: Backends, experiment_id: str
) -> None:
    work_off(backends.repository, further={"fgsm-linf": {"flat_gradients": 30}})

    app = opened()

    assert set(app.dataframe[0].value["in doubt"]) == {"! flat-gradients"}
    assert any(
        text.value.startswith("! ") and "gradients of zero on 30.0% of the samples" in text.value
        for text in app.text
    )


def test_invalid_cells_show_no_number_and_why(backends: Backends, experiment_id: str) -> None:
    work_off(backends.repository, further={"fgsm-linf": {"invalid": "non-finite logits"}})

    app = opened()

    assert app.dataframe[0].value["robust %"].isna().all()
    assert set(app.dataframe[0].value["networks"]) == {"0 of 2"}
    assert any("2 of 2 non-finite logits" in text.value for text in app.text)


def test_leaderboard_follows_the_chosen_meaning_of_robust(
    backends: Backends, experiment_id: str
) -> None:
    work_off(backends.repository)

    table = choose(opened(), "Robust means", "S1").dataframe[0].value

    assert list(table["robust %"]) == pytest.approx([39.5] * len(table["robust %"]))


def test_leaderboard_filters_by_method(backends: Backends, experiment_id: str) -> None:
    work_off(backends.repository)
    app = opened()

    app.multiselect[0].set_value(["random"]).run()

    assert set(app.dataframe[0].value["method"]) == {"random"}


def test_jobs_show_states_and_why_a_job_failed(backends: Backends, experiment_id: str) -> None:
    work_off(backends.repository, failing={JobKind.DISTILL})

    app = opened("jobs")

    table = app.dataframe[0].value
    assert set(table["state"]) == {"FAILED", "WAITING", "SUCCEEDED"}
    assert any("NonFiniteLoss" in str(why) for why in table["why"])
    assert any("blocked by" in str(why) for why in table["why"])
    assert "NonFiniteLoss" in app.expander[0].label


def test_jobs_are_filtered_by_kind(backends: Backends, experiment_id: str) -> None:
    table = choose(opened("jobs"), "Kind", JobKind.TRAIN).dataframe[0].value

    assert set(table["kind"]) == {"train"}


def test_paused_kind_is_told(backends: Backends) -> None:
    backends.repository.pause(JobKind.TRAIN)

    assert "overproof resume train" in opened("jobs").warning[0].value


def test_experiment_shows_matrix_and_units_behind_a_number(
    backends: Backends, experiment_id: str
) -> None:
    work_off(backends.repository)

    app = opened("experiment")

    matrix, units = (frame.value for frame in app.dataframe)
    assert set(matrix.columns) >= {"trained on", "clean", "fgsm-linf@8/255", "fgsm-linf@16/255"}
    assert list(matrix["fgsm-linf@8/255"]) == pytest.approx([19.5] * len(matrix["fgsm-linf@8/255"]))
    known = {unit.unit_id for unit in backends.repository.units(ExperimentId(experiment_id))}
    assert set(units["unit"]) <= known
    # two seeds: their networks and their cells; distilled sets too unless it is the whole set
    assert list(units["task"]).count("networks") == 2
    assert list(units["task"]).count("white-box") == 2


def test_experiment_can_be_linked_to(backends: Backends, experiment_id: str) -> None:
    app = opened("experiment", experiment=experiment_id)

    assert app.selectbox[0].value == experiment_id
    assert "No numbers yet" in app.info[0].value


def test_database_that_does_not_answer_is_an_error_message_without_secrets(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "OVERPROOF_DATABASE_URL", "postgresql+psycopg2://user:secret@127.0.0.1:1/results"
    )

    app = opened()

    assert "does not answer" in app.error[0].value
    assert "secret" not in app.error[0].value


def test_ranking_without_rankings_says_how_to_get_some(backends: Backends) -> None:
    assert "ranking: true" in opened("ranking").info[0].value


def test_ranking_shows_scores_at_any_weight(backends: Backends) -> None:
    planned = plan(an_experiment(ranking=True), no_added_datasets)
    submit(planned, repository=backends.repository, bus=backends.bus, clock=SystemClock())
    work_off(backends.repository)

    app = opened("ranking")
    [slider] = [each for each in app.slider if each.label == "Weight of IOR in DDRS"]
    slider.set_value(0.9).run()

    assert not app.exception
    [row] = app.dataframe[0].value.to_dict("records")
    # networks that are all equally good neither lose nor gain anything
    assert (row["HLR %"], row["IOR %"], row["place"]) == ("0.0 ± 0.0", "0.0 ± 0.0", "1")
    assert row["DDRS"] == "0.2689 ± 0.0000"
