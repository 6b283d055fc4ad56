"""Benchmarks that check what they time, with the flags and the columns of nccl-tests.

``all_reduce.run`` and ``matmul.run`` are what the command line calls; ``exact`` makes data on which every correct
result is exact, ``table`` turns sizes, bandwidths and rows into text and back.
"""
