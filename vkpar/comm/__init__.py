"""Collectives: schedules of steps, the slots and links that they move through, and the communicator."""
