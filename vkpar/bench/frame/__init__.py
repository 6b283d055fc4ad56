"""What all benchmarks share: options, rows, reports."""
