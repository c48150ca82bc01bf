"""Runs the worker of kind train: `python -m services.trainer`."""

from __future__ import annotations

import sys

from overproof.core.states import JobKind
from overproof.runtime.service import run_worker

if __name__ == "__main__":
    sys.exit(run_worker("trainer", JobKind.TRAIN))
