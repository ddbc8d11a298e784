"""Triton's interpreter for these tests: they are skipped, saying so, where Triton is not installed."""

from __future__ import annotations

import os

import pytest

# Triton reads this when a kernel is decorated, so it is set before any test module imports one.
os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton", reason="needs Triton: pip install triton")
