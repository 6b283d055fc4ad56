"""The main job, ``vkpar demo``: a rig of Vulkan devices runs a real sentence encoder, complete, split in every way.

``main.run`` is what the command line calls; ``weights`` loads the model, ``reference`` is the same model in NumPy,
``bounds`` says how far the two may differ, ``checks`` sums over the rig.
"""
