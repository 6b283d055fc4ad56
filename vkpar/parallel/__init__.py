"""Splits of a model over ranks."""
