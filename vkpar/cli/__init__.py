"""The command line: ``main`` parses it; ``devices``, ``environment`` and ``tune`` print tables on the ``console``.

The arguments of ``vkpar bench`` stand in :mod:`vkpar.bench.commands`.
"""
