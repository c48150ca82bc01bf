"""Networks for small images. Each is built from typed parameters and the facts of its images."""
