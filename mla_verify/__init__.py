"""Contracts, kernels under test and the check that joins problems with the sanitizer.

Here belong: the two contracts (tensors, oracle, bound, baseline), the registry of kernels, the check, the command line,
the pytest plugin and the reports. Byte-level work belongs in `sanitizer`, drawing in `strategies`.
"""
