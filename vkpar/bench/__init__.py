"""Benchmarks that check what they time, with the flags and the columns of nccl-tests.

``commands`` puts them on the command line. ``sweep`` times one of the collectives, which ``collectives`` lists, by
size; ``selfcheck`` checks all of them, ``host`` says what a call costs on the host, ``launch`` what small operations
do, ``matmul`` times products.
``exact`` makes data on which every correct result is exact, or derives a bound; ``frame`` is what all runs share.
"""
