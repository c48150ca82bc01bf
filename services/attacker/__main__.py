"""Runs the worker of kind attack: `python -m services.attacker`."""

from __future__ import annotations

import sys

from overproof.core.states import JobKind
from overproof.runtime.service import run_worker

if __name__ == "__main__":
    sys.exit(run_worker("attacker", JobKind.ATTACK))
