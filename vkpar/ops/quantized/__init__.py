"""Quantised weights: their kinds and how they lie."""
