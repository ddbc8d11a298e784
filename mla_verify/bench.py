"""What a check costs, phase by phase and against a floor of the same run; and what the optimised forms save."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from hypothesis import Phase
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mla_verify.bench_economy import EconomyRow, economy_json, economy_rows, print_economy
from mla_verify.bench_sandbox import SandboxRow, print_sandbox_rows, sandbox_row
from mla_verify.check import check
from mla_verify.devices import one_thread, resolve_device
from mla_verify.drawing import drawn_into
from mla_verify.economy import peak_bytes
from mla_verify.errors import UsageError
from mla_verify.examine import Bench, examine, kernel_call
from mla_verify.kernel import LIMITS, Kernel, limits_of
from mla_verify.loading import open_bench
from mla_verify.registry import resolve
from mla_verify.table import console
from sanitizer.secrets import Secret
from sanitizer.stopwatch import Stopwatch
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

__all__ = ["PhaseRow", "RateRow", "bench_rows", "print_bench"]

PHASES: Final = ("place", "fill", "runs", "compare", "intercept", "oracle", "bound", "baseline")
SANITIZER: Final = ("fill", "compare", "intercept")
_CALLS: Final = 4  # warm-up, and one run under each secret
_RATE_EXAMPLES: Final = 400
_RATE_ROUNDS: Final = 5
_KERNELS: Final = {"up-projection": "up_projection_direct", "decode": "decode_split_kv_empty"}

_SMALL_UP: Final = UpProjectionProblem(
    num_tokens=4, num_heads=4, kv_lora_rank=32, v_head_dim=16, regime="gaussian", dtype="bfloat16"
)
_MODEL_UP: Final = replace(_SMALL_UP, num_tokens=32, num_heads=128, kv_lora_rank=512, v_head_dim=128)
_SMALL_DECODE: Final = DecodeProblem(
    kv_lens=(9, 3),
    q_lens=(1, 1),
    num_heads=2,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    page_size=4,
    num_kv_splits=2,
    regime="gaussian",
    dtype="bfloat16",
)
_MODEL_DECODE: Final = replace(
    _SMALL_DECODE,
    kv_lens=(1024,) * 4,
    q_lens=(1,) * 4,
    num_heads=16,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    num_kv_splits=4,
    page_size=64,
    softmax_scale=-4,
)
_PROBLEMS: Final[dict[str, tuple[tuple[str, Problem], ...]]] = {
    "up-projection": (
        ("small", _SMALL_UP),
        ("model, bfloat16", _MODEL_UP),
        ("model, float32", replace(_MODEL_UP, dtype="float32")),
    ),
    "decode": (
        ("small", _SMALL_DECODE),
        ("model, pages of 1", replace(_MODEL_DECODE, page_size=1)),
        ("model, pages of 64", _MODEL_DECODE),
        ("model, pages of 64, float32", replace(_MODEL_DECODE, dtype="float32")),
    ),
}
# What counts as a small problem where the rate is measured.
_SMALL_SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)
_SMALL_LIMITS: Final = {
    "up-projection": UpProjectionLimits(
        num_heads=_SMALL_SIZES, kv_lora_rank=_SMALL_SIZES, v_head_dim=_SMALL_SIZES, max_num_tokens=17
    ),
    "decode": DecodeLimits(
        num_heads=_SMALL_SIZES, kv_lora_rank=_SMALL_SIZES, qk_rope_head_dim=(0, 1, 4, 8), max_kv_len=33, max_batch=4
    ),
}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One problem: median milliseconds per phase over the repeats of one run, and memory as multiples.

    sanitizer_over_rest: (fill + compare + intercept) / (runs + oracle + bound + baseline).
    memory_over_tensors: what the sanitizer holds, arena included, over the bytes of the problem's tensors.
    oracle_peak_mib: the most that the oracle, bound and baseline held at once.
    """

    contract: str
    problem: str
    milliseconds: dict[str, float]
    total: float
    sanitizer_over_rest: float
    memory_over_tensors: float
    oracle_peak_mib: float


@dataclass(frozen=True, slots=True)
class RateRow:
    """Small problems: milliseconds per example of a whole check, and of drawing, bare runs and the oracle alone."""

    contract: str
    examples: int
    check: float
    drawing: float
    runs: float
    oracle: float
    rate_over_floor: float


def bench_rows(
    contract: str | None, *, device: str, repeats: int, only_economy: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Measure one contract, or both. Raises UsageError for an unknown one.

    only_economy: leave out what a check costs, and only compare optimised forms with their baselines.
    """
    if contract is not None and contract not in LIMITS:
        raise UsageError(f"unknown contract {contract!r}; there are {' and '.join(LIMITS)}")
    resolve_device(device)
    names = [contract] if contract else list(LIMITS)
    phases: list[PhaseRow] = []
    rates: list[RateRow] = []
    sandboxes: list[SandboxRow] = []
    economy: list[EconomyRow] = []
    for name in names:
        with one_thread(resolve_device(device)):
            economy += economy_rows(name, device=device)
        if only_economy:
            continue
        kernel = resolve(_KERNELS[name])
        bench = open_bench(kernel, device=device)
        with one_thread(bench.device):
            phases += [_phases(bench, label, problem, repeats) for label, problem in _PROBLEMS[name]]
            rates.append(_rate(kernel, device))
            sandboxes.append(sandbox_row(_small(kernel), device))
    if only_economy:
        return {"economy": economy_json(economy)}
    return {
        "phases": [asdict(row) for row in phases],
        "rates": [asdict(row) for row in rates],
        "sandbox": [asdict(row) for row in sandboxes],
        "economy": economy_json(economy),
    }


def _phases(bench: Bench, label: str, problem: Problem, repeats: int) -> PhaseRow:
    examine(problem, bench)  # pools, pages and caches are touched once, outside the count
    runs: list[dict[str, float]] = []
    for _ in range(repeats):
        bench.stopwatch = Stopwatch(wait_for=bench.device)
        examine(problem, bench)
        runs.append(dict(bench.stopwatch.seconds))
    median = {phase: 1e3 * statistics.median(run.get(phase, 0.0) for run in runs) for phase in PHASES}
    own = sum(median[phase] for phase in SANITIZER)
    rest = sum(median[phase] for phase in ("runs", "oracle", "bound", "baseline"))
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    tensor_bytes = sum(_extent_bytes(plan.shape, plan.strides, plan.dtype) for plan in placement.tensors)
    return PhaseRow(
        contract=bench.contract.name,
        problem=label,
        milliseconds={phase: round(value, 3) for phase, value in median.items()},
        total=round(sum(median.values()), 3),
        sanitizer_over_rest=round(own / rest, 3),
        memory_over_tensors=round(_sanitizer_bytes(bench, problem) / tensor_bytes, 2),
        oracle_peak_mib=round(_oracle_peak(bench, problem) / 2**20, 1),
    )


def _sanitizer_bytes(bench: Bench, problem: Problem) -> int:
    """What the sanitizer allocates for one problem in an arena of its own, the problem's tensors included."""
    fresh = open_bench(bench.kernel, device=str(bench.device))
    placement = fresh.contract.place(problem, fresh.kernel, fresh.device)

    def lay_out() -> None:
        fresh.arena.load(placement.tensors)
        for secret in Secret:
            fresh.arena.poison(secret)
            fresh.arena.stray()

    return peak_bytes(lay_out)


def _oracle_peak(bench: Bench, problem: Problem) -> int:
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    bench.arena.load(placement.tensors)
    bench.arena.poison(Secret.A)
    tensors = bench.arena.tensors()

    def judge() -> None:
        expectation = bench.contract.expect(problem, bench.kernel, tensors)
        baseline = bench.contract.baseline(problem, bench.kernel, tensors)
        expectation.judge(baseline, skip={})

    return peak_bytes(judge)


def _extent_bytes(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes from a tensor's first element to its last, gaps included."""
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))) * dtype.itemsize


class _EmptyMode(TorchDispatchMode):
    """Intercepts every operator and does nothing else: what interception cannot cost less than."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _rate(kernel: Kernel, device: str) -> RateRow:
    """Compare whole checks of small problems with drawing, bare runs and the oracle for the same problems.

    In processor time, and of several rounds that with the median ratio: other programs disturb the caches.
    """
    rounds = sorted((_rate_once(kernel, device) for _ in range(_RATE_ROUNDS)), key=lambda row: row.rate_over_floor)
    return rounds[_RATE_ROUNDS // 2]


def _small(kernel: Kernel) -> Kernel:
    """The same kernel, asked for small valid problems only."""
    limits = replace(_SMALL_LIMITS[kernel.contract], dtypes=limits_of(kernel).dtypes)
    return replace(kernel, limits=limits, validates=(), known_deviations=())


def _rate_once(kernel: Kernel, device: str) -> RateRow:
    small = _small(kernel)
    bench = open_bench(small, device=device)
    floor = _Floor(bench)
    run = drawn_into(
        floor.follow,
        bench.contract.problems(small),
        examples=_RATE_EXAMPLES,
        seed=0,
        phases=(Phase.generate,),
    )
    run()  # strategies and pools are built on first use
    floor = floor.reset()
    started = time.process_time()
    run()
    drawing = time.process_time() - started - floor.laying - floor.runs - floor.oracle
    check(small, examples=20, seed=0, device=device, isolation="none")
    started = time.process_time()
    report = check(small, examples=_RATE_EXAMPLES, seed=0, device=device, isolation="none")
    whole = (time.process_time() - started) / report.examples
    return RateRow(
        contract=kernel.contract,
        examples=report.examples,
        check=round(1e3 * whole, 3),
        drawing=round(1e3 * drawing / floor.problems, 3),
        runs=round(1e3 * floor.runs / floor.problems, 3),
        oracle=round(1e3 * floor.oracle / floor.problems, 3),
        rate_over_floor=round((drawing + floor.runs + floor.oracle) / floor.problems / whole, 3),
    )


@dataclass(slots=True, eq=False)
class _Floor:
    """What a check cannot cost less than, problem by problem as they are drawn: bare runs and the oracle.

    Seconds of processor time. `laying` is what it takes to lay the tensors out, and no part of the floor.
    """

    bench: Bench
    problems: int = 0
    laying: float = 0.0
    runs: float = 0.0
    oracle: float = 0.0

    def reset(self) -> _Floor:
        """Count from nothing again."""
        self.problems, self.laying, self.runs, self.oracle = 0, 0.0, 0.0, 0.0
        return self

    def follow(self, problem: Any) -> None:
        """Run the kernel as often as an audit does, under an empty dispatch mode each time, and ask the oracle."""
        bench = self.bench
        began = time.process_time()
        placement = bench.contract.place(problem, bench.kernel, bench.device)
        bench.arena.load(placement.tensors)
        bench.arena.poison(Secret.Z)
        call = kernel_call(bench, placement, state=None)
        views: list[dict[str, Tensor]] = [bench.arena.tensors() for _ in range(_CALLS)]
        laid = time.process_time()
        for tensors in views:
            with torch.no_grad(), _EmptyMode():
                call(tensors)
        called = time.process_time()
        bench.contract.expect(problem, bench.kernel, views[0])
        self.problems += 1
        self.laying += laid - began
        self.runs += called - laid
        self.oracle += time.process_time() - called


def print_bench(rows: dict[str, list[dict[str, Any]]], *, to: Console | None = None) -> None:
    """Print every table that there are rows for."""
    out = to or console()
    if "phases" in rows:
        _print_costs(rows, out)
        out.print()
    print_economy([EconomyRow(**row) for row in rows["economy"]], to=out)


def _print_costs(rows: dict[str, list[dict[str, Any]]], out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", title="ms per check, median", title_justify="left")
    for column in ("contract", "problem"):
        table.add_column(column, no_wrap=True)
    for column in (*PHASES, "total", "san./rest", "mem./tens", "oracle MiB"):
        table.add_column(column, justify="right")
    for row in rows["phases"]:
        cells = [f"{row['milliseconds'][phase]:.2f}" for phase in PHASES]
        ratios = (
            f"{row['sanitizer_over_rest']:.2f}",
            f"{row['memory_over_tensors']:.2f}",
            f"{row['oracle_peak_mib']:.0f}",
        )
        table.add_row(row["contract"], row["problem"], *cells, f"{row['total']:.2f}", *ratios)
    out.print(table)
    out.print()
    rates = Table(
        box=None, pad_edge=False, header_style="bold", title="small problems, ms per example", title_justify="left"
    )
    rates.add_column("contract")
    for column in ("examples", "check", "drawing", "bare runs", "oracle", "rate/floor"):
        rates.add_column(column, justify="right")
    for row in rows["rates"]:
        figures = [f"{row[name]:.2f}" for name in ("check", "drawing", "runs", "oracle", "rate_over_floor")]
        rates.add_row(row["contract"], str(row["examples"]), *figures)
    out.print(rates)
    out.print(Text("rate/floor: (drawing + bare runs + oracle) / check, from this run", style="dim"))
    out.print()
    print_sandbox_rows(rows["sandbox"], to=out)
