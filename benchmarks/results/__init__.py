"""The published results: examples run by the product's own commands, and the page about them."""
