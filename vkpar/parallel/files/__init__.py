"""Files of weights: what they hold, read only where it is needed."""
