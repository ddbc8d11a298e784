"""A problem in one line."""

from __future__ import annotations

from strategies.describe import describe
from strategies.layouts import Layout
from strategies.problems import DecodeProblem, UpProjectionProblem


def test_only_what_is_unusual_is_said() -> None:
    """Fields at their defaults are left out; layouts show the numbers that are not 0."""
    problem = UpProjectionProblem(num_tokens=3, dtype="bfloat16", out_layout=Layout("padded_rows", 1))
    assert describe(problem) == "num_tokens=3, dtype=bfloat16, out_layout=padded_rows(pad=1)"
    decode = DecodeProblem(kv_lens=(17, 0), q_lens=(1, 1), o_layout=Layout("sliced", 2, 3), with_lse=False)
    assert describe(decode) == "kv_lens=(17, 0), q_lens=(1, 1), with_lse=False, o_layout=sliced(pad=2, offset=3)"


def test_the_simplest_problem_has_words_too() -> None:
    """Even a problem of nothing but defaults is described."""
    assert describe(UpProjectionProblem()) == "the simplest problem"
    assert describe(DecodeProblem(q_layout=Layout("strided_inner"))) == "q_layout=strided_inner"
