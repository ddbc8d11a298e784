"""Triton's interpreter, made right and made to tell: its arithmetic is mended, its loads and stores are recorded.

Here belongs what knows how Triton interprets a kernel. Triton itself is imported where it is used, never before.
"""
