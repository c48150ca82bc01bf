"""Differentiable augmentation with parameters that are drawn once and applied many times."""
