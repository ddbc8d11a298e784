"""Functions decorated with `triton.jit`: modules that need Triton at their top, imported when a kernel is loaded.

Triton reads the source of a jitted function and looks its names up in the module around it, so that `tl` has to be a
global there. Importing one of these modules without `TRITON_INTERPRET=1` on a machine without a GPU compiles nothing.
"""
