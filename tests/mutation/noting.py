"""A pytest plugin that notes in failing.txt which tests fail; those can tell nothing about a mutant."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_FAILING: Final = "failing.txt"  # in the folder that pytest runs in


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line per failure."""
    if report.failed:
        with Path(_FAILING).open("a", encoding="utf-8") as noted:
            noted.write(f"{report.nodeid}\n")
