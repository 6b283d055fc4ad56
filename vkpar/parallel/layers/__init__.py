"""Layers of a model over the ranks of a communicator."""
