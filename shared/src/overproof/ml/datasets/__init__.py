"""Data sets: one packed format, readers for what users bring, and what libraries ship."""
