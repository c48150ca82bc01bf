"""What a job shows while it runs and afterwards: small files for people, beside its results."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore


def shown_files(store: ArtifactStore, job_id: str) -> Mapping[str, str]:
    """Names of the files that a job shows → their keys, for `store.read`; empty without any.

    Where several attempts showed a file of one name, it is that of the latest attempt: one that
    has lost its claim and goes on for a while does not hide what its successor shows.

    Raises:
        InvalidKey: `job_id` is none.
        StoreUnavailable: the store does not answer.
    """
    folder = keys.shown_folder(job_id)
    latest = {key.removeprefix(folder).partition("-")[2]: key for key in store.keys(folder)}
    return dict(sorted(latest.items()))
