"""What the optimised forms save: launches, allocations, temporaries and time of each beside the form it replaced."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from mla_verify.devices import platform_of
from mla_verify.economy import measure
from mla_verify.errors import Unavailable
from mla_verify.examine import Bench, kernel_call
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.registry import registered, resolve
from mla_verify.traces import Spending
from mla_verify.within import why_outside
from sanitizer.arena import Arena
from sanitizer.secrets import Secret
from sanitizer.stopwatch import synchronise
from strategies.layouts import CONTIGUOUS, Layout
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

__all__ = ["EconomyRow", "answers", "compared", "economy_json", "economy_rows", "print_economy", "through_itself"]

Role = Literal["optimised", "baseline", "before #42561"]

_WARM_UPS: Final = 3
_PAST_THE_CACHE: Final = 256 << 20  # bytes of inputs taken in turn: more than any cache on the way holds
_MOST_COPIES: Final = 32
_SECONDS: Final = 0.25  # per form and problem, at least …
_FEWEST: Final = 15  # … and so many calls
_DTYPES: Final = ("float32", "float16", "bfloat16")

# kv_b_proj's value half as it lies in vLLM: behind 128 columns of the key half, transposed (`vllm_weight`).
_VLLM: Final = Layout("vllm_weight", 128)
_UP: Final = UpProjectionProblem(kv_lora_rank=512, v_head_dim=128, regime="gaussian")
_DECODE: Final = DecodeProblem(
    num_heads=16,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    page_size=64,
    num_kv_splits=4,
    regime="gaussian",
    softmax_scale=-4,
)


def _up(tokens: int, heads: int, layout: Layout) -> UpProjectionProblem:
    return replace(_UP, num_tokens=tokens, num_heads=heads, w_layout=layout)


_SHAPES: Final[dict[str, tuple[tuple[str, Problem], ...]]] = {
    "up-projection": tuple(
        (f"B={tokens} N={heads}, {name}", _up(tokens, heads, layout))
        for name, layout in (("vLLM's weight", _VLLM), ("packed weight", CONTIGUOUS))
        for tokens, heads in ((1, 16), (32, 16), (1, 128), (32, 128))
    ),
    "decode": (
        ("4 requests of 256 keys", replace(_DECODE, kv_lens=(256,) * 4, q_lens=(1,) * 4)),
        ("1 request of 2048 keys", replace(_DECODE, kv_lens=(2048,), q_lens=(1,))),
    ),
}


@dataclass(frozen=True, slots=True)
class EconomyRow:
    """One form of one kernel on one problem. The fields that are not explained are those of `Spending`.

    weight_copied: one temporary is as large as the weight; None for decode, which has none. milliseconds: median of one
    run, with the forms taking turns. ratio: of the optimised form's time to this one's, median over the turns.
    """

    contract: str
    kernel: str
    role: Role
    dtype: str
    shape: str
    platform: str
    launches: int
    fills: int
    allocations: int
    allocated_bytes: int
    temporaries: int
    temporary_bytes: int
    weight_copied: bool | None
    milliseconds: float
    ratio: float


_Call = Callable[[dict[str, Tensor]], object]


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """A way to compute one problem, ready to be called."""

    name: str
    role: Role
    call: _Call


def economy_rows(contract: str, *, device: str) -> list[EconomyRow]:
    """Measure every optimised kernel of a contract that runs here beside its baseline, per dtype and shape.

    Kernels that an interpreter would run are left out: what it launches and takes says nothing about them.
    """
    rows: list[EconomyRow] = []
    for kernel in registered():
        if kernel.contract != contract or kernel.baseline is None:
            continue
        try:
            bench = open_bench(kernel, device=device)
            baseline = open_bench(resolve(kernel.baseline), device=device)
        except Unavailable:
            continue
        if bench.interpreted or baseline.interpreted:
            continue
        for dtype in _DTYPES:
            for shape, problem in _SHAPES[contract]:
                rows += compared(bench, baseline, shape, replace(problem, dtype=dtype))
    return rows


def compared(bench: Bench, baseline: Bench, shape: str, problem: Problem) -> list[EconomyRow]:
    """The rows of one problem, the optimised form's first; none where either kernel does not take it."""
    if why_outside(problem, bench.kernel) or why_outside(problem, baseline.kernel):
        return []
    inputs = _rotating(bench, problem)
    forms = [_form(bench, "optimised", problem), _form(baseline, "baseline", problem)]
    if bench.kernel.name == "up_projection_direct":
        forms.append(_Form("vLLM 0.21.0's form", "before #42561", through_itself))
    spent = [measure(lambda form=form: form.call(inputs[0]), bench.device) for form in forms]
    taken = _taken([form.call for form in forms], inputs, bench.device)
    weight = inputs[0].get("w_uv")
    weight_bytes = None if weight is None else weight.numel() * weight.itemsize
    return [
        _row(
            bench.kernel,
            form,
            spending,
            (problem.dtype, shape, platform_of(bench.device)),
            weight_bytes,
            seconds,
            taken[0],
        )
        for form, spending, seconds in zip(forms, spent, taken, strict=True)
    ]


def _row(
    kernel: Kernel,
    form: _Form,
    spent: Spending,
    where: tuple[str, str, str],  # dtype, shape, platform
    weight_bytes: int | None,
    seconds: Sequence[float],
    optimised: Sequence[float],
) -> EconomyRow:
    dtype, shape, platform = where
    return EconomyRow(
        contract=kernel.contract,
        kernel=form.name,
        role=form.role,
        dtype=dtype,
        shape=shape,
        platform=platform,
        launches=spent.launches,
        fills=spent.fills,
        allocations=spent.allocations,
        allocated_bytes=spent.allocated_bytes,
        temporaries=spent.temporaries,
        temporary_bytes=spent.temporary_bytes,
        weight_copied=None if weight_bytes is None else spent.largest_temporary >= weight_bytes,
        milliseconds=round(1e3 * statistics.median(seconds), 4),
        ratio=round(statistics.median(ours / own for ours, own in zip(optimised, seconds, strict=True)), 3),
    )


def _form(bench: Bench, role: Role, problem: Problem) -> _Form:
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    prepare = bench.kernel.prepare
    if prepare is None:
        return _Form(bench.kernel.name, role, kernel_call(bench, placement, state=None))
    states: dict[int, Any] = {}  # what was planned for each set of tensors, once, as a serving engine would

    def call(tensors: dict[str, Tensor]) -> object:
        key = id(tensors)
        if key not in states:
            states[key] = prepare(**tensors, **placement.arguments)
        return kernel_call(bench, placement, state=states[key])(tensors)

    return _Form(bench.kernel.name, role, call)


def _rotating(bench: Bench, problem: Problem) -> list[dict[str, Tensor]]:
    """The problem's tensors several times over, so many that no cache holds what the next call reads."""
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    sets: list[dict[str, Tensor]] = []
    held = 0
    while len(sets) < 2 or (held < _PAST_THE_CACHE and len(sets) < _MOST_COPIES):
        arena = Arena(bench.device)
        arena.load(placement.tensors)
        arena.poison(Secret.Z)
        sets.append(arena.tensors())
        held += sum(tensor.numel() * tensor.itemsize for tensor in sets[-1].values())
    return sets


def _taken(calls: Sequence[_Call], inputs: Sequence[dict[str, Tensor]], device: torch.device) -> list[list[float]]:
    """Seconds per form and turn. The forms take turns, and so do the inputs.

    Both forms of a turn meet the same disturbances, so that ratios within a turn hold still where times do not.
    """
    taken: list[list[float]] = [[] for _ in calls]
    clock = _events if device.type == "cuda" else _by_the_clock
    with torch.no_grad():
        for _ in range(_WARM_UPS):
            for call in calls:
                call(inputs[0])
        synchronise(device)
        turn, until = 0, time.perf_counter() + _SECONDS * len(calls)
        while turn < _FEWEST or time.perf_counter() < until:
            for index in range(len(calls)):
                form = (index + turn) % len(calls)  # nobody always comes right after the same other one
                # Each form comes upon inputs that were used longest ago.
                tensors = inputs[(turn * len(calls) + index) % len(inputs)]
                taken[form].append(clock(calls[form], tensors, device))
            turn += 1
    return taken


def _by_the_clock(call: _Call, tensors: dict[str, Tensor], _device: torch.device) -> float:
    started = time.perf_counter()
    call(tensors)
    return time.perf_counter() - started


def _events(call: _Call, tensors: dict[str, Tensor], device: torch.device) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(tensors)
    end.record()
    synchronise(device)
    return begin.elapsed_time(end) / 1e3


def through_itself(tensors: dict[str, Tensor]) -> None:
    """The up-projection before vLLM #42561: into the output's memory, reshaped, and copied onto itself."""
    x, w_uv, out = tensors["x"], tensors["w_uv"], tensors["out"]
    tokens, heads, width = out.shape
    product = out.view(tokens, heads, width).transpose(0, 1)
    torch.bmm(x.transpose(0, 1), w_uv, out=product)
    flat = product.transpose(0, 1).reshape(-1, heads * width)
    product.resize_((tokens, heads * width))
    product.copy_(flat)


def print_economy(rows: Sequence[EconomyRow], *, to: Console) -> None:
    """Print the table of each contract, then what it answers."""
    for contract in dict.fromkeys(row.contract for row in rows):
        mine = [row for row in rows if row.contract == contract]
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        table.title = f"economy of one call, {contract}, on {mine[0].platform}"
        for column in ("shape", "dtype", "form"):
            table.add_column(column, no_wrap=True)
        for column in ("launches", "fills", "allocs", "KiB", "temporaries", "KiB", "ms", "ratio"):
            table.add_column(column, justify="right")
        for row in mine:
            figures = (row.launches, row.fills, row.allocations, _kib(row.allocated_bytes))
            times = (
                row.temporaries or "none",
                _kib(row.temporary_bytes),
                f"{row.milliseconds:.3f}",
                f"{row.ratio:.2f}",
            )
            first = (row.shape, row.dtype) if row.role == "optimised" else ("", "")
            table.add_row(*first, row.kernel, *map(str, (*figures, *times)))
        to.print(table)
        for line in answers(mine):
            to.print(Text(line), soft_wrap=True)
        to.print()
    words = (
        "launches: kernels, copies and fills on a GPU; on a CPU, operators that compute or copy",
        "temporaries: allocated and released again within one operator",
        "ratio: the optimised form's time over this one's, median of calls that took turns",
    )
    for line in words:
        to.print(Text(line, style="dim"), soft_wrap=True)


def answers(rows: Sequence[EconomyRow]) -> list[str]:
    """What the rows of one contract say about the two questions that the optimised forms were written for."""
    direct = [row for row in rows if row.role == "optimised"]
    lines: list[str] = []
    if direct[0].contract == "up-projection":
        lines.append("Does bmm into this view use a temporary here? " + _temporaries(direct))
    pairs = [
        (row, other)
        for row in direct
        for other in rows
        if other.role == "baseline" and (other.dtype, other.shape) == (row.dtype, row.shape)
    ]
    saved = sorted({other.launches - row.launches for row, other in pairs})
    fills = sorted({other.fills - row.fills for row, other in pairs})
    lines.append(
        f"How many launches did torch.empty save? {_span(saved)} a call beside the zero-filled form, "
        f"{_span(fills)} of them fills"
    )
    return lines


def _temporaries(direct: Sequence[EconomyRow]) -> str:
    """Yes or no, per kind of weight and dtype; a copy of the whole weight is said apart from smaller pieces."""
    said: dict[str, list[str]] = {}
    for row in direct:
        word = "a copy of the weight" if row.weight_copied else "smaller ones" if row.temporaries else "none"
        where = f"{row.dtype} with {row.shape.split(', ')[-1]}"
        if where not in said.setdefault(word, []):
            said[word].append(where)
    return "; ".join(f"{word}: {', '.join(places)}" for word, places in said.items())


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _kib(size: int) -> str:
    return f"{size / 1024:,.0f}"


def economy_json(rows: Sequence[EconomyRow]) -> list[dict[str, Any]]:
    """The rows as plain data: what `bench --json` prints under "economy", and what lies in economy.json."""
    return [asdict(row) for row in rows]
