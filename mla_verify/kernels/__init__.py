"""Kernels that ship with mla-verify, as plain functions in the two calling conventions.

Here belong: reference kernels in plain torch and adapters to kernels of other projects. What a kernel declares about
itself belongs in the registry, faulty kernels belong in the tests.
"""
