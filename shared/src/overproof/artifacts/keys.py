"""Where things lie in the store."""

from __future__ import annotations

from overproof.core.refs import checked_key


def job_folder(job_id: str) -> str:
    """The folder of all that attempts at a job leave."""
    return checked_key(f"jobs/{job_id}") + "/"


def attempt_file(job_id: str, token: int, name: str) -> str:
    """A file of one attempt; the token is the claim's, so attempts never share a file."""
    return checked_key(f"jobs/{job_id}/{token}/{name}")


def manifest(job_id: str) -> str:
    """The file whose existence means that the job's result is complete."""
    return checked_key(f"jobs/{job_id}/manifest.json")


def checkpoint_folder(job_id: str) -> str:
    """The folder of a job's checkpoints."""
    return checked_key(f"jobs/{job_id}/checkpoint") + "/"


def checkpoint(job_id: str, token: int, step: int) -> str:
    """A checkpoint; later attempts and later steps sort after earlier ones."""
    return checked_key(f"jobs/{job_id}/checkpoint/{token:06d}-{step:012d}")


def shown_folder(job_id: str) -> str:
    """The folder of what a job shows while it runs and afterwards."""
    return checked_key(f"jobs/{job_id}/shown") + "/"


def shown_file(job_id: str, token: int, name: str) -> str:
    """A file that an attempt shows; those of later attempts sort after earlier ones."""
    return checked_key(f"jobs/{job_id}/shown/{token:06d}-{name}")


def dead_letter(sha256: str) -> str:
    """The raw bytes of a dead letter."""
    return checked_key(f"dead-letters/{sha256}")


def asset(kind: str, sha256: str) -> str:
    """What a user added; `kind` is `datasets`, `sets` (distilled ones), `labels` or `weights`."""
    return checked_key(f"assets/{kind}/{sha256}")
