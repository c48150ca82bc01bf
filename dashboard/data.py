"""What pages read, kept for a few seconds so that many viewers cost one query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from overproof.core.ids import ExperimentId, JobId
from overproof.core.states import JobKind, JobState
from overproof.results.repository import ResultsRepository
from overproof.results.views import (
    AttemptView,
    ExperimentView,
    JobView,
    KindStatus,
    LeaderboardRow,
    UnitRow,
    WorkerView,
)
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

TTL_S = 3.0
SEEN_LATELY_S = 60.0

_HASH: dict[str | type[Any], Callable[[Any], Any]] = {ResultsRepository: id}


def open_repository() -> ResultsRepository:
    """The database that the environment names; one pool of connections for all viewers.

    Raises:
        SettingsError: an environment variable with a value that cannot be used.
        DatabaseUnavailable: the embedded database cannot be opened.
    """
    settings = Settings.from_env()
    return _open(settings.database, settings)


@st.cache_resource
def _open(database: str, _settings: Settings) -> ResultsRepository:
    return Backends.from_settings(_settings).repository


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def experiments(repository: ResultsRepository) -> Sequence[ExperimentView]:
    """The newest experiments."""
    return repository.experiments()


def experiment_names(repository: ResultsRepository) -> Mapping[ExperimentId | None, str]:
    """Labels for a choice of experiments; None stands for all of them."""
    return {None: "all"} | {
        each.experiment_id: f"{each.name} ({each.experiment_id})"
        for each in experiments(repository)
    }


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def leaderboard(
    repository: ResultsRepository, experiment_id: ExperimentId | None
) -> Sequence[LeaderboardRow]:
    """Groups with their metrics, of one experiment or of all."""
    return repository.leaderboard(experiment_id)


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def jobs(
    repository: ResultsRepository,
    experiment_id: ExperimentId | None,
    state: JobState | None,
    kind: JobKind | None,
    limit: int,
) -> Sequence[JobView]:
    """Jobs that fit all that is given, the newest first."""
    return repository.jobs(experiment_id, state, kind, limit=limit)


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def attempts(repository: ResultsRepository, job_id: JobId) -> Sequence[AttemptView]:
    """All attempts at a job, oldest first."""
    return repository.attempts(job_id)


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def units(repository: ResultsRepository, experiment_id: ExperimentId) -> Sequence[UnitRow]:
    """All units that an experiment asks for."""
    return repository.units(experiment_id)


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def kinds(repository: ResultsRepository) -> Sequence[KindStatus]:
    """What is let through, and how much there is to do."""
    return repository.kind_status()


@st.cache_data(ttl=TTL_S, show_spinner=False, hash_funcs=_HASH)
def workers(repository: ResultsRepository) -> Sequence[WorkerView]:
    """Workers that were seen lately."""
    return repository.workers(SEEN_LATELY_S)
