"""Kernels with one seeded fault each, and right kernels of unusual make: what the checks are measured by.

Nothing here uses a kernel of the suite: each contract has a plain, right implementation of its own here, and every
fault changes one thing about it. `corpus.py` gathers them, `mla-verify scoreboard` shows which is found by what.
"""
