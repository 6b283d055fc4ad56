"""Measure a rig, and keep what was found."""
