"""Vendors' copy engines, which carry bytes between the cards of one vendor: see docs/notes/peer.md."""
