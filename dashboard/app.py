"""The dashboard: `streamlit run dashboard/app.py`. It reads the database and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

# Streamlit puts the folder of this file on the path; pages import `dashboard.…` like all others.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from overproof.errors import OverproofError, redact  # noqa: E402

st.set_page_config(page_title="Overproof", layout="wide")

page = st.navigation(
    [
        st.Page("pages/leaderboard.py", title="Leaderboard", icon=":material/trophy:"),
        st.Page("pages/ranking.py", title="Ranking", icon=":material/leaderboard:"),
        st.Page("pages/experiment.py", title="Experiment", icon=":material/science:"),
        st.Page("pages/jobs.py", title="Jobs", icon=":material/list:"),
    ]
)
try:
    page.run()
except OverproofError as error:
    st.error(redact(str(error)))
