"""What every operation stands on: checks, plans, windows of big arrays, dispatches."""
