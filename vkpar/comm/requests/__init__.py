"""What was asked: collectives, checked before anything is recorded."""
