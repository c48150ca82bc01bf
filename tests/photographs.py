"""Photographs for tests: the first images of every class of an archive that a variable names."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

VARIABLE = "OVERPROOF_TEST_CIFAR10"


def part_of_cifar10(into: Path, *, training: int, test: int) -> Path:
    """A tar of the first so many images of each class; skips the test where there is no CIFAR-10.

    Args:
        into: path of the tar to write.
        training, test: images of each class.
    """
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"{VARIABLE} names no tar of CIFAR-10 as train/<class>/ and test/<class>/")
    taken: Counter[tuple[str, ...]] = Counter()
    with tarfile.open(source) as whole, tarfile.open(into, "w") as part:
        for member in whole:
            folder = PurePosixPath(member.name).parts[-3:-1]
            limit = training if folder[:1] == ("train",) else test
            if member.isfile() and folder and taken[folder] < limit:
                taken[folder] += 1
                part.addfile(member, whole.extractfile(member))
    assert len(taken) == 20
    return into
