"""Experiment: how far it is, its numbers as a matrix, and where each number comes from."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import charts, data
from overproof.artifacts import keys
from overproof.catalog.slices import cell_label
from overproof.core.semantics import Semantics
from overproof.core.spec import CellBody
from overproof.core.states import TERMINAL, JobKind, JobState
from overproof.report.standings import Standing, standings
from overproof.results.views import UnitRow


def _behind(row: Standing, units: Sequence[UnitRow]) -> list[UnitRow]:
    """The units that a number comes from: distilled sets, networks, and the attack's cells."""
    own = [unit for unit in units if unit.group == row.group_id]
    networks = [unit for unit in own if unit.kind is JobKind.TRAIN]
    cells = [unit for unit in own if unit.kind is JobKind.ATTACK and _cell(unit) == row.cell]
    distilled = {str(unit.body["training_set"]) for unit in networks}
    return [*(unit for unit in units if unit.unit_id in distilled), *networks, *cells]


def _cell(unit: UnitRow) -> str:
    body = CellBody.model_validate(unit.body)
    return cell_label(body.attack, body.threat.epsilon)


st.title("Experiment")

repository = data.open_repository()
experiments = {each.experiment_id: each for each in data.experiments(repository)}
if not experiments:
    st.info("No experiment yet. Start one with `overproof run SPEC`.")
    st.stop()

# A link such as `?experiment=exp-…` opens one.
asked = st.query_params.get("experiment")
ids = list(experiments)
experiment_id = st.selectbox(
    "Experiment",
    ids,
    index=next((i for i, each in enumerate(ids) if each == asked), 0),
    format_func=lambda each: f"{experiments[each].name} ({each})",
)
experiment = experiments[experiment_id]

ended = sum(experiment.jobs.get(state, 0) for state in TERMINAL)
st.progress(
    ended / experiment.total if experiment.total else 1.0,
    f"{ended} of {experiment.total} jobs ended",
)
for column, state in zip(st.columns(len(JobState) + 1), [*JobState, None], strict=True):
    if state is None:
        column.metric("blocked", experiment.blocked)
    else:
        column.metric(state.lower(), experiment.jobs.get(state, 0))
if experiment.cancelled:
    st.warning("This experiment is cancelled.")
with st.expander("Spec"):
    st.json(dict(experiment.spec))

rows = standings(data.leaderboard(repository, experiment_id), Semantics.S2)
if not rows:
    st.info("No numbers yet.")
    st.stop()

st.subheader("Robust accuracy in percent")
charts.show_matrix(rows)

st.subheader("Where a number comes from")
labels = [f"{row.training_set}, {row.cell or 'clean'}, {row.bench}" for row in rows]
row = rows[st.selectbox("Number", range(len(rows)), format_func=labels.__getitem__)]
units = _behind(row, data.units(repository, experiment_id))
st.dataframe(
    [
        {
            "unit": unit.unit_id,
            "task": unit.task,
            "seed": unit.body.get("seed"),
            "state": unit.state,
            "result": {name: value for name, value in unit.result.items() if value is not None},
            "job": unit.job_id,
            "manifest": keys.manifest(unit.job_id),
        }
        for unit in units
    ],
    hide_index=True,
)
facts = {
    name: value
    for job_id in sorted({unit.job_id for unit in units})
    for attempt in data.attempts(repository, job_id)[-1:]
    for name, value in attempt.facts.items()
}
if facts:
    st.caption(", ".join(f"{name} {value}" for name, value in sorted(facts.items())))
