"""The words that the host writes and kernels read, by name.

A class is a section of a push block, or of a list of specialization constants, as the ``#ifdef`` of a shader parts
them; a block is some sections in a row. Fields are called what the shader calls them, in small letters; ``threads`` is
the width of a work-group, and an underscore behind a name keeps it apart from those of tuples. The unit tests compare
fields with the names in every module that ships. Nothing is imported from the package: arrays, operations, graphs and
collectives all write such words.
"""
