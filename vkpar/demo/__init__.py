"""The main job, ``vkpar demo``: a rig of Vulkan devices runs the feed-forward blocks of a real sentence encoder.

``main.run`` is what the command line calls; ``weights`` loads the model, ``reference`` is the same model in NumPy,
``feedforward`` splits a block over the rig, ``bounds`` says how far the two may differ, ``checks`` sums over the rig.
"""
