"""The built-in kernels as SPIR-V, and a manifest of their sources: data only, made by ``tools/compile_shaders.py``."""
