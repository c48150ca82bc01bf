"""Measurements: ours against the best alternative in one run. `make bench` runs them."""
