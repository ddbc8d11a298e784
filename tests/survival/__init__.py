"""Kernels that take their process down, in every way that we know of."""
