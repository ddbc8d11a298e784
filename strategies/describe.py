"""Says in one line what is not plain about a problem."""

from __future__ import annotations

from dataclasses import fields

from strategies.layouts import Layout
from strategies.problems import Problem

__all__ = ["describe"]


def describe(problem: Problem) -> str:
    """The fields that differ from the simplest problem's: `num_tokens=3, out_layout=padded_rows(pad=1)`."""
    unusual = [
        f"{field.name}={_worded(getattr(problem, field.name))}"
        for field in fields(problem)
        if getattr(problem, field.name) != field.default
    ]
    return ", ".join(unusual) or "the simplest problem"


def _worded(value: object) -> str:
    if not isinstance(value, Layout):
        return value if isinstance(value, str) else repr(value)
    numbers = [f"{name}={number}" for name, number in (("pad", value.pad), ("offset", value.offset)) if number]
    return f"{value.kind}({', '.join(numbers)})" if numbers else value.kind
