"""Problems survive JSON, and nothing that is not a problem is taken for one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from strategies.decode import decode_problems, invalid_decode_problems
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from strategies.serial import ProblemError, problem_from_json, problem_to_json
from strategies.up_projection import invalid_up_projection_problems, up_projection_problems
from strategies.vocabulary import DECODE_FORMATS, FP8_FORMATS, WEIGHT_FORMATS

QUANTISED = UpProjectionLimits(weight_formats=WEIGHT_FORMATS, fp8_formats=FP8_FORMATS)
STRATEGIES = {
    "decode": decode_problems(),
    "quantised decode": decode_problems(DecodeLimits(kv_formats=DECODE_FORMATS, quantised_q="optional")),
    "invalid decode": invalid_decode_problems(),
    "invalid up-projection": invalid_up_projection_problems(),
    "up-projection": up_projection_problems(),
    "quantised up-projection": up_projection_problems(QUANTISED),
    "invalid quantised up-projection": invalid_up_projection_problems(QUANTISED),
}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_problems_survive_json(drawn: Callable[..., list[Problem]], name: str) -> None:
    """Written and read again through text, a problem equals itself."""
    for problem in drawn(STRATEGIES[name], count=300):
        assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem


def test_older_files_mean_plain_tensors() -> None:
    """A problem that was saved before there were formats is read as one without any."""
    data = problem_to_json(DecodeProblem(kv_lens=(3,), seed=7))
    for name in ("q_format", "kv_format", "q_scale", "kv_scale"):
        del data[name]
    assert problem_from_json(data) == DecodeProblem(kv_lens=(3,), seed=7)
    data = problem_to_json(UpProjectionProblem(num_tokens=3, seed=7))
    for name in ("weight_format", "fp8_format"):
        del data[name]
    assert problem_from_json(data) == UpProjectionProblem(num_tokens=3, seed=7)


def _without(problem: Problem, field: str) -> dict[str, Any]:
    data = problem_to_json(problem)
    del data[field]
    return data


def _with(problem: Problem, **changed: object) -> dict[str, Any]:
    return {**problem_to_json(problem), **changed}


UP, DECODE = UpProjectionProblem(), DecodeProblem()
LAYOUT = {"kind": "contiguous", "pad": 0, "offset": 0}
HOSTILE: dict[str, tuple[object, str]] = {
    "no object": ([1, 2], "problem: got .* wanted a JSON object"),
    "nothing": (None, "problem: got None"),
    "no contract": (_without(UP, "contract"), "contract: got None, wanted up-projection or decode"),
    "unknown contract": (_with(UP, contract="prefill"), "contract: got 'prefill'"),
    "contract of a list": (_with(UP, contract=["decode"]), "contract: got"),
    "missing field": (_without(UP, "seed"), "seed is missing"),
    "unknown field": (_with(UP, colour="red"), "got 'colour', wanted no other fields"),
    "key that is no name": ({**problem_to_json(UP), 3: 4}, "wanted names as keys"),
    "negative size": (_with(UP, num_tokens=-1), "num_tokens: got -1, wanted an int from 0"),
    "huge size": (_with(UP, num_tokens=10**18), "num_tokens: got 1000000000000000000"),
    "float size": (_with(UP, num_heads=1.0), "num_heads: got 1.0"),
    "NaN for a size": (_with(UP, num_heads=math.nan), "num_heads: got nan"),
    "bool for a size": (_with(UP, num_heads=True), "num_heads: got True"),
    "text for a size": (_with(UP, v_head_dim="4"), "v_head_dim: got '4'"),
    "sizes whose product is huge": (
        _with(UP, num_tokens=2**20, num_heads=2**20, v_head_dim=2**20),
        "its tensors span .* elements",
    ),
    "huge pad": (_with(UP, out_layout={**LAYOUT, "pad": 2**40}), "out_layout.pad: got"),
    "overlapping output": (_with(UP, out_layout={**LAYOUT, "kind": "broadcast"}), "out_layout.kind: got"),
    "unknown layout": (_with(UP, x_layout={**LAYOUT, "kind": "spiral"}), "x_layout.kind: got 'spiral'"),
    "layout without a pad": (_with(UP, x_layout={"kind": "sliced", "offset": 0}), "pad is missing"),
    "layout of junk": (_with(UP, w_layout=[[[]]]), "w_layout: got"),
    "unknown dtype": (_with(UP, dtype="float8"), "dtype: got 'float8', wanted one of float32"),
    "other contract's regime": (_with(UP, regime="retrieval"), "regime: got 'retrieval'"),
    "unknown weight format": (_with(UP, weight_format="int4"), "weight_format: got 'int4', wanted one of plain"),
    "unknown encoding": (_with(UP, weight_format="fp8", fp8_format="e3m4"), "fp8_format: got 'e3m4'"),
    "encoding of a plain weight": (_with(UP, fp8_format="e5m2"), "fp8_format: got 'e5m2', wanted e4m3fn where"),
    "pairs of an odd rank": (_with(UP, weight_format="mxfp4", kv_lora_rank=3), "kv_lora_rank: got 3, wanted an even"),
    "unknown fault": (_with(UP, invalid="o_over_q"), "invalid: got 'o_over_q'"),
    "negative seed": (_with(UP, seed=-1), "seed: got -1"),
    "huge seed": (_with(UP, seed=2**63), "seed: got"),
    "lengths as text": (_with(DECODE, kv_lens="12"), "kv_lens: got '12', wanted a list"),
    "length of a list": (_with(DECODE, kv_lens=[[1]]), "kv_lens: got"),
    "bool as a length": (_with(DECODE, kv_lens=[True]), "kv_lens: got True"),
    "lengths that differ": (_with(DECODE, q_lens=[1, 1]), "q_lens: got .* one for each of 1 requests"),
    "too many requests": (_with(DECODE, kv_lens=[0] * (2**16 + 1)), "kv_lens: got .* at most"),
    "page of nothing": (_with(DECODE, page_size=0), "page_size: got 0, wanted an int from 1"),
    "no foreign page": (_with(DECODE, foreign_pages=0), "foreign_pages: got 0"),
    "int for a flag": (_with(DECODE, with_lse=1), "with_lse: got 1, wanted true or false"),
    "scale out of range": (_with(DECODE, softmax_scale=-1000), "softmax_scale: got -1000"),
    "unknown order": (_with(DECODE, page_order="random"), "page_order: got 'random'"),
    "splits whose scratch is huge": (
        _with(DECODE, num_kv_splits=2**12, num_heads=2**20),
        "its tensors span .* elements",
    ),
    "rows without end": (
        _with(DECODE, kv_lens=[0] * 2**12, q_lens=[2**20] * 2**12, num_heads=0),
        "q_lens: 4294967296 rows or pages",
    ),
    "two formats": (_with(DECODE, q_format="e4m3fn", kv_format="e5m2"), "q_format: got 'e4m3fn', wanted plain or"),
    "unknown format": (_with(DECODE, kv_format="fp8"), "kv_format: got 'fp8'"),
    "scale as a number": (_with(DECODE, kv_format="e5m2", kv_scale=0.5), "kv_scale: got 0.5"),
    "scale of nothing": (_with(DECODE, kv_scale="0.5"), "kv_scale: got '0.5', wanted 1 where"),
    "pages without end": (
        _with(DECODE, kv_lens=[2**20] * 2, q_lens=[0, 0], kv_lora_rank=0),
        "kv_lens: 2097152 rows or pages",
    ),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_is_no_problem_is_refused(name: str) -> None:
    """Anything but what we write raises ProblemError with one sentence: what, got, wanted."""
    data, message = HOSTILE[name]
    with pytest.raises(ProblemError, match=message) as caught:
        problem_from_json(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
