"""Numbers from counts: plain values in and out, no torch, nothing of the pipeline."""
