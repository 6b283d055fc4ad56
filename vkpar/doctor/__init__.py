"""``vkpar doctor``: what a machine offers, whether each device computes right, and whether all work together.

``table`` has a row for each check, ``worker`` runs them in a child process, ``run`` puts them in order and ``report``
and ``page`` show what was found.
"""
