"""Functions by element: their expressions, the kernels made of them, how calls run."""
