"""Jobs: what runs, what waits, what failed and why."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from dashboard import data
from overproof.core.states import JobKind, JobState
from overproof.results.views import JobView

_REFRESH_S = 5.0
_LIMIT = 500


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _share(job: JobView) -> float | None:
    """How much of the job is done; what a job that does not run reported last is no measure."""
    if job.state is JobState.SUCCEEDED:
        return 1.0
    if job.state is not JobState.RUNNING or job.progress is None or not job.progress.total:
        return None
    return job.progress.step / job.progress.total


st.title("Jobs")

repository = data.open_repository()
names = data.experiment_names(repository)
columns = st.columns([2, 1, 1])
experiment_id = columns[0].selectbox(
    "Experiment", list(names), format_func=lambda each: names[each]
)
state = columns[1].selectbox("State", [None, *JobState], format_func=lambda each: each or "all")
kind = columns[2].selectbox("Kind", [None, *JobKind], format_func=lambda each: each or "all")


@st.fragment(run_every=_REFRESH_S)
def show() -> None:
    """The queue and the jobs, anew every few seconds."""
    alive = [worker.kind for worker in data.workers(repository)]
    for column, each in zip(st.columns(len(JobKind)), data.kinds(repository), strict=True):
        column.metric(f"{each.kind}: running", each.running)
        column.caption(f"{each.ready} ready, {alive.count(each.kind)} workers")
        if each.breaker_open:
            column.error(
                f"stopped after {each.failures_in_a_row} failures in a row; "
                f"`overproof resume {each.kind}` goes on"
            )
        elif each.paused:
            column.warning(f"paused; `overproof resume {each.kind}` goes on")

    jobs = data.jobs(repository, experiment_id, state, kind, _LIMIT)
    st.dataframe(
        [
            {
                "job": job.job_id,
                "kind": job.kind,
                "state": job.state,
                "what": job.label,
                "progress": _share(job),
                "attempt": job.attempt,
                "owner": job.owner,
                "started": _moment(job.started_at),
                "ended": _moment(job.ended_at),
                "why": job.error or (job.blocked_by and f"blocked by {job.blocked_by}"),
            }
            for job in jobs
        ],
        hide_index=True,
        column_config={
            "progress": st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1)
        },
    )
    if len(jobs) == _LIMIT:
        st.caption(f"The newest {_LIMIT} are shown.")


show()

failed = data.jobs(repository, experiment_id, JobState.FAILED, kind, _LIMIT)
if failed:
    st.subheader("Why jobs failed")
    labels = {job.job_id: f"{job.label} ({job.job_id})" for job in failed}
    job_id = st.selectbox("Failed job", list(labels), format_func=lambda each: labels[each])
    for attempt in data.attempts(repository, job_id):
        if attempt.failure is not None:
            with st.expander(f"attempt {attempt.attempt}: {attempt.failure.summary}"):
                st.code(attempt.failure.traceback, language=None)
