"""Ranking: which distilled sets teach most, and which of those give robust networks."""

from __future__ import annotations

import streamlit as st

from dashboard import charts, data
from overproof.core.semantics import Semantics
from overproof.report import ranking
from overproof.report.figures import score_against_drop_rate
from overproof.report.standings import standings

st.title("Ranking")

repository = data.open_repository()
names = data.experiment_names(repository)

left, middle, right = st.columns([2, 1, 1])
experiment_id = left.selectbox("Experiment", list(names), format_func=names.__getitem__)
weight = middle.slider(
    "Weight of IOR in DDRS", 0.0, 1.0, ranking.WEIGHT, 0.05, help="The rest is that of HLR."
)
gamma = right.slider(
    "Weight of augmentation in ARS", 0.0, 1.0, ranking.GAMMA, 0.05, help="The rest is without."
)
rows = ranking.rankings(
    repository,
    standings(data.leaderboard(repository, experiment_id), Semantics.S2),
    experiment_id,
    weight=weight,
    gamma=gamma,
)
if not rows:
    st.info("Nothing is ranked yet. Write `ranking: true` in a spec and run it.")
    st.stop()

benches = ranking.by_bench(rows)
bench = st.selectbox("Conditions", list(benches), help="Only sets with equal ones have places.")
members = benches[bench]
charts.show_ranking(members)
st.download_button("CSV", ranking.to_csv(members), "ranking.csv", "text/csv")
if any(row.drop_rates for row in members):
    st.plotly_chart(score_against_drop_rate(members), key="front")
