"""Runs the aggregator: `python -m services.aggregator`."""

from __future__ import annotations

import sys

from overproof.handlers.aggregate import compute_metrics
from overproof.runtime.aggregation import Aggregator
from overproof.runtime.service import run_service

if __name__ == "__main__":
    sys.exit(
        run_service(
            "aggregator",
            lambda settings, backends, hooks: Aggregator(
                backends, compute_metrics, settings=settings, hooks=hooks
            ),
        )
    )
