"""Enqueue, wait, fail and close."""
