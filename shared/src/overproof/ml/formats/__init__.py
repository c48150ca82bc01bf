"""Published forms of distilled sets and weights: one form a file, all of them read as data."""
