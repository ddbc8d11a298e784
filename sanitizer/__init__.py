"""Bytes and processes: proves what a call overwrites, what it reads, and what it leaves alone.

Here belong: secrets, the arena, the interception of allocations, the audit under three secrets. Nothing here
knows attention, Hypothesis or pytest: any callable that takes tensors can be audited.
"""
