"""Leaderboard: which training sets give robust networks."""

from __future__ import annotations

import streamlit as st

from dashboard import charts, data
from overproof.core.semantics import Semantics
from overproof.report.standings import standings, to_csv, to_json

st.title("Leaderboard")

repository = data.open_repository()
names = data.experiment_names(repository)

left, middle, right = st.columns([2, 2, 1])
experiment_id = left.selectbox("Experiment", list(names), format_func=names.__getitem__)
meanings = list(Semantics)
semantics = right.selectbox(
    "Robust means",
    meanings,
    index=meanings.index(Semantics.S2),
    help="S1: right on the last iterate. S2: right on the clean image and on every iterate. "
    "S3: right on the clean image and on the last iterate.",
)
rows = standings(data.leaderboard(repository, experiment_id), semantics)
if not rows:
    st.info("No results yet. Start an experiment with `overproof run SPEC`.")
    st.stop()

benches = list(dict.fromkeys(row.bench for row in rows))
bench = middle.selectbox(
    "Data set · network · protocol", benches, help="Only rows with equal ones may be compared."
)
rows = [row for row in rows if row.bench == bench]

methods = sorted({row.method for row in rows})
cells = list(dict.fromkeys(row.cell for row in rows if row.cell is not None))
chosen_methods = st.multiselect("Methods", methods, placeholder="all")
chosen_cells = st.multiselect("Attacks", cells, placeholder="all")
rows = [
    row
    for row in rows
    if (not chosen_methods or row.method in chosen_methods)
    and (not chosen_cells or row.cell in chosen_cells)
]

charts.show_table(rows)
as_csv, as_json, _ = st.columns([1, 1, 4])
as_csv.download_button("CSV", to_csv(rows), "leaderboard.csv", "text/csv")
as_json.download_button("JSON", to_json(rows), "leaderboard.json", "application/json")
if any(row.cell is not None for row in rows):
    charts.show_figures(rows)
