"""Which way a collective takes: pure functions of the rig, the tuning and the size."""
