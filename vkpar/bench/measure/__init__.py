"""What benchmarks run and check."""
