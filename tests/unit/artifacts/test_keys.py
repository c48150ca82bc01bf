from __future__ import annotations

import pytest

from overproof.artifacts import keys
from overproof.core.refs import checked_prefix
from overproof.errors import InvalidKey


def test_attempts_of_one_job_never_share_a_file() -> None:
    assert keys.attempt_file("job-a", 1, "x") != keys.attempt_file("job-a", 2, "x")


def test_later_checkpoints_sort_after_earlier_ones() -> None:
    names = [
        keys.checkpoint("job-a", token, step)
        for token, step in [(1, 5), (1, 90), (1, 1000), (2, 0), (10, 3)]
    ]

    assert names == sorted(names)


def test_checkpoints_lie_in_their_folder() -> None:
    folder = keys.checkpoint_folder("job-a")

    assert checked_prefix(folder) == folder
    assert keys.checkpoint("job-a", 1, 2).startswith(folder)


def test_things_of_different_kinds_lie_in_different_folders() -> None:
    sha256 = "0" * 64
    folders = {
        key.rpartition("/")[0]
        for key in (
            keys.manifest("job-a"),
            keys.attempt_file("job-a", 1, "x"),
            keys.checkpoint("job-a", 1, 0),
            keys.dead_letter(sha256),
            keys.asset("datasets", sha256),
            keys.asset("weights", sha256),
        )
    }

    assert len(folders) == 6


def test_name_that_leaves_the_attempts_folder_is_refused() -> None:
    with pytest.raises(InvalidKey):
        keys.attempt_file("job-a", 1, "../2/x")
