"""Proofs for every size: what a Triton kernel stores and loads, decided from its intermediate code, without a GPU.

Here belongs what knows Triton's IR (TTIR), the symbolic terms it is read into, and the questions that are put to a
solver. What a kernel computes, and how TTIR is compiled further, are no part of it. z3 is an optional library and is
imported where it is asked.
"""

from mla_verify.proofs.declaring import Each, Flow, Layout, Proof, Ragged

__all__ = ["Each", "Flow", "Layout", "Proof", "Ragged"]
