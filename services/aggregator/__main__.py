"""Runs the aggregator: `python -m services.aggregator`."""

from __future__ import annotations

import sys

from overproof.handlers.aggregate import compute_metrics
from overproof.handlers.compare import compute_comparison
from overproof.runtime.aggregation import Aggregator
from overproof.runtime.service import run_service

if __name__ == "__main__":
    sys.exit(
        run_service(
            "aggregator",
            lambda settings, backends, hooks: Aggregator(
                backends, compute_metrics, compute_comparison, settings=settings, hooks=hooks
            ),
        )
    )
