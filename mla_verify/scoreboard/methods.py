"""What others do to test a kernel: one call, and its outputs compared with a reference within torch's tolerances.

Note [Fresh memory]: what `torch.empty` holds decides what a plain test sees. Fresh pages are zero, and so is here
whatever a tester does not fill: outputs, scratch, gaps, unused slots, tails of tables. A test that is lucky enough to
get yesterday's numbers instead sees more, one that gets yesterday's right answer sees less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.contract import Placement
from mla_verify.examine import Bench, kernel_call
from mla_verify.interpreting import interpreting
from mla_verify.kernel import Kernel, limits_of
from mla_verify.within import why_outside
from sanitizer.interception import Interceptor
from sanitizer.plan import Element
from sanitizer.secrets import Secret, fill_with_secret
from strategies.layouts import Layout
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

__all__ = ["METHODS", "Method", "complaint", "fixed_problems"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to test a kernel.

    fixed: on a few fixed problems instead of drawn ones. outputs, scratch: what outputs hold before the call, and what
    the kernel finds in memory that it asks for. strided: once more with an output that has gaps, whose address, shape
    and strides are compared too.
    """

    name: str
    what: str
    fixed: bool = False
    outputs: float | str = 0
    scratch: Secret = Secret.Z
    strided: bool = False


METHODS: Final = (
    Method("fixed shapes", "assert_close on a few tile-aligned, contiguous problems", fixed=True),
    Method("drawn shapes", "assert_close on the problems that the suite draws"),
    Method("NaN pre-fill", "the same, with outputs full of NaN before the call", outputs="nan"),
    Method(
        "deterministic fill",
        "the same with torch.utils.deterministic.fill_uninitialized_memory: scratch holds NaN too",
        outputs="nan",
        scratch=Secret.A,
    ),
    Method(
        "out= check",
        "as torch's OpInfo tests do: outputs hold a large number, with and without gaps; address and strides kept",
        outputs=3e4,
        strided=True,
    ),
)

_ALIGNED_UP: Final = (
    UpProjectionProblem(num_tokens=16, num_heads=16, kv_lora_rank=512, v_head_dim=128, regime="gaussian"),
    UpProjectionProblem(num_tokens=64, num_heads=4, kv_lora_rank=128, v_head_dim=64, regime="gaussian"),
    UpProjectionProblem(num_tokens=16, num_heads=2, kv_lora_rank=16, v_head_dim=16, regime="gaussian"),
)
_ALIGNED_DECODE: Final = (
    DecodeProblem(
        kv_lens=(128, 64),
        q_lens=(1, 1),
        num_heads=16,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        page_size=64,
        num_kv_splits=4,
        regime="gaussian",
        softmax_scale=-4,
    ),
    DecodeProblem(
        kv_lens=(128, 64),
        q_lens=(2, 2),
        num_heads=16,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        page_size=16,
        regime="gaussian",
        softmax_scale=-3,
    ),
    DecodeProblem(
        kv_lens=(32, 16),
        q_lens=(1, 1),
        num_heads=2,
        kv_lora_rank=16,
        qk_rope_head_dim=16,
        page_size=16,
        num_kv_splits=2,
        regime="gaussian",
        softmax_scale=-2,
    ),
)
_DTYPES: Final = ("float32", "float16", "bfloat16")
_GAP: Final = Layout("padded_rows", 8)


def fixed_problems(kernel: Kernel) -> list[Problem]:
    """The problems of a test file: aligned, contiguous, one after the other; those that the kernel takes."""
    limits = limits_of(kernel)
    every: list[Problem] = []
    if isinstance(limits, DecodeLimits):
        for aligned, dtype, kv_format in product(_ALIGNED_DECODE, _DTYPES, limits.kv_formats):
            scale = "1" if kv_format == "plain" else "0.5"
            every.append(replace(aligned, dtype=dtype, kv_format=kv_format, kv_scale=scale))
            if kv_format != "plain":
                every.append(replace(aligned, dtype=dtype, kv_format=kv_format, q_format=kv_format, kv_scale=scale))
    else:
        for aligned, dtype, weight_format in product(_ALIGNED_UP, _DTYPES, limits.weight_formats):
            every.append(
                replace(aligned, dtype=dtype, weight_format=weight_format, fp8_format=limits.fp8_formats[0])
                if weight_format == "fp8"
                else replace(aligned, dtype=dtype, weight_format=weight_format)
            )
    return [problem for problem in every if not why_outside(problem, kernel)]


def complaint(method: Method, problem: Problem, bench: Bench) -> str:
    """What the method says against the kernel at one problem; empty where it is content."""
    for strided in (False, True) if method.strided else (False,):
        asked = _with_gaps(problem) if strided else problem
        with interpreting(triton=bench.interpreted):
            wrong = _compared(method, asked, bench)
        if wrong:
            return wrong
    return ""


def _with_gaps(problem: Any) -> Any:
    name = "o_layout" if isinstance(problem, DecodeProblem) else "out_layout"
    return replace(problem, **{name: _GAP})


def _compared(method: Method, problem: Any, bench: Bench) -> str:
    """Call once and compare. Whatever the kernel raises is a complaint."""
    arena = bench.arena
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    arena.load(placement.tensors)
    arena.poison(Secret.Z)
    tensors = arena.tensors()
    names = [name for name in bench.contract.outputs if name in tensors]
    for name in names:
        fill: Any = method.outputs
        fill_with_secret(tensors[name], fill)
    expected = bench.contract.baseline(problem, bench.kernel, tensors)
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in tensors.items()}
    try:
        call = _call(bench, placement, tensors)
        with Interceptor(method.scratch, bench.device):
            returned = call(tensors) or {}
    except Exception as error:  # noqa: BLE001 - the kernel's own code: whatever it raises fails a test
        return f"raised {type(error).__name__}: {error}"
    if method.strided and any(before[name] != (tensors[name].data_ptr(), tensors[name].stride()) for name in names):
        return "an output was resized or moved"
    outputs = {name: returned.get(name, tensors[name]) for name in names}
    return _mismatch(outputs, expected, _rules(placement, names))


def _call(
    bench: Bench, placement: Placement, tensors: Mapping[str, Tensor]
) -> Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]:
    state: Any = None
    if bench.kernel.prepare is not None:
        state = bench.kernel.prepare(**tensors, **placement.arguments)
    return kernel_call(bench, placement, state=state)


def _rules(placement: Placement, names: list[str]) -> dict[str, Tensor | None]:
    return {plan.name: plan.rules for plan in placement.tensors if plan.name in names}


def _mismatch(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor], rules: Mapping[str, Tensor | None]) -> str:
    """The first output that is not close to what was expected, where anything was."""
    for name, output in outputs.items():
        wanted, rule = expected[name], rules.get(name)
        if output.shape != wanted.shape or output.dtype != wanted.dtype:
            return f"{name} has another shape or dtype"
        owed = torch.ones((), dtype=torch.bool) if rule is None else rule == Element.DETERMINED
        owed = owed.to(wanted.device).expand(wanted.shape)
        try:
            torch.testing.assert_close(output[owed], wanted[owed], equal_nan=True)
        except AssertionError as error:
            return f"{name}: {str(error).splitlines()[0]}"
    return ""
