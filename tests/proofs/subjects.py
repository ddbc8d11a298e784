"""The declarations of the kernels beside, and what has to come of them: 'tensor: property' of all that is refuted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mla_verify.proofs import Each, Flow, Layout, Proof, Ragged

__all__ = ["FLOWS", "RIGHT", "SUBJECTS", "UNDECIDED", "WRONG", "Subject"]

_FILE: Final = Path(__file__).with_name("kernels.py")


@dataclass(frozen=True, slots=True)
class Subject:
    """One kernel, and which properties of which tensors are refuted or out of class; all others are proved."""

    proof: Proof
    refuted: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()  # of the refutation, where they are known to be the smallest
    out_of_class: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


def declared(name: str, kernel: str, grid: tuple[str, ...], *layouts: Layout, **more: Any) -> Proof:
    """A declaration whose pointers are float32 unless `pointers` says otherwise."""
    constants = more.pop("constants", {})
    pointers = {layout.tensor: "fp32" for layout in layouts} | more.pop("pointers", {})
    return Proof(name, f"{_FILE}:{kernel}", pointers, (constants,), grid, layouts, **more)


def out(tensor: str, sizes: str, strides: str, **more: Any) -> Layout:
    """An output; sizes and strides separated by spaces."""
    return Layout(tensor, tuple(sizes.split()), tuple(strides.split()), output=True, **more)


_C3: Final = out("C", "B M N", "scb scm scn")
_C2: Final = out("C", "M N", "scm scn")
_C1: Final = out("C", "N", "sc")
_TILES: Final = ("cdiv(M, BM) * cdiv(N, BN)", "B")
_AB: Final = (Layout("A", ("B", "M", "K"), ("sab", "sam", "sak")), Layout("Bp", ("B", "K", "N"), ("sbb", "sbk", "sbn")))


def bmm(name: str, *, fault: int = 0, grid: tuple[str, ...] = _TILES, **more: Any) -> Proof:
    """The batched product in tiles of 64."""
    constants = {"BM": 64, "BN": 64, "BK": 32, "FAULT": fault}
    return declared(name, "bmm", grid, _C3, *_AB, constants=constants, **more)


def tiles(name: str, kernel: str, *, grid: tuple[str, ...] = _TILES, layout: Layout = _C3, **constants: Any) -> Proof:
    """Tiles of 64 × 64 unless `constants` says otherwise."""
    return declared(name, kernel, grid, layout, constants={"BM": 64, "BN": 64, **constants})


def row(name: str, kernel: str, fault: int, *, grid: str = "cdiv(N, BN)", **more: Any) -> Proof:
    """One row in tiles of 32."""
    return declared(name, kernel, (grid,), _C1, constants={"BN": 32, "FAULT": fault}, **more)


_LENGTHS: Final = (Each("b", "B", "SeqLen[b] >= 0"),)
_PART: Final = ("B", "S", "D"), ("spb", "sps", "spd")


def split(guard: int) -> Proof:
    """Stage 1 of a split-KV decode, guarded against empty splits or not."""
    return declared(
        f"split, guard {guard}",
        "split",
        ("B", "S"),
        Layout("Part", *_PART, output=True),
        pointers={"KV": "fp32", "SeqLen": "i32"},
        constants={"BLOCK_D": 64, "BN": 32, "GUARD": guard},
        preconditions=("D <= BLOCK_D", "S >= 1"),
        each=_LENGTHS,
    )


def merge(guard: int, *, preconditions: tuple[str, ...] = ("D <= BLOCK_D", "S >= 1")) -> Proof:
    """Stage 2."""
    return declared(
        f"merge, guard {guard}" + ("" if len(preconditions) == 2 else ", any D"),
        "merge",
        ("B",),
        out("Out", "B D", "sob sod"),
        Layout("Part", *_PART),
        pointers={"SeqLen": "i32"},
        constants={"BLOCK_D": 64, "GUARD": guard},
        preconditions=preconditions,
        each=_LENGTHS,
    )


def ragged(fault: int) -> Proof:
    """Rows through a table of offsets."""
    return declared(
        f"ragged, fault {fault}",
        "ragged",
        ("B", "cdiv(longest, BM)"),
        out("O", "R N", "som son", index=("row", "column"), live="row < Indptr[B]"),
        pointers={"Indptr": "i32"},
        constants={"BM": 4, "BN": 16, "FAULT": fault},
        preconditions=("N <= BN", "longest >= 0"),
        each=(Each("b", "B", "Indptr[b + 1] - Indptr[b] <= longest"),),
        ragged=(Ragged("Indptr", "B", "R"),),
    )


def split_k(fault: int) -> Proof:
    """Partial sums of a product's inner dimension."""
    return declared(
        f"split-K, fault {fault}",
        "split_k",
        ("cdiv(K, BK)", "cdiv(N, BN)"),
        Layout("Part", ("cdiv(K, BK)", "N"), ("N", "1"), output=True),
        Layout("X", ("K", "N"), ("N", "1")),
        constants={"BN": 32, "BK": 8, "FAULT": fault},
    )


FIX_UP: Final = declared(
    "fix-up",
    "fix_up",
    ("cdiv(N, BN)",),
    out("Out", "N", "1"),
    Layout("Part", ("cdiv(K, BK)", "N"), ("N", "1")),
    constants={"BN": 32, "BK": 8},
    preconditions=("K >= 0",),
)


def two_outputs(fault: int) -> Proof:
    """A row, and a number for it."""
    return declared(
        f"two outputs, fault {fault}",
        "two_outputs",
        ("M", "cdiv(N, BN)"),
        _C2,
        out("L", "M", "1"),
        constants={"BN": 32, "FAULT": fault},
        preconditions=("N >= 1",),
    )


def widths(name: str, most: int) -> Proof:
    """The batched product, packed, with sizes up to `most`."""
    largest = {"M": most, "N": most, "K": 64, "B": 64, "scm": most, "scn": 1, "scb": most * most}
    reads = {"sab": most * 64, "sam": 64, "sak": 1, "sbb": most * 64, "sbk": most, "sbn": 1}
    packed = (
        "scn == 1",
        "scm == N",
        "scb == M * N",
        "sak == 1",
        "sam == K",
        "sab == M * K",
        "sbn == 1",
        "sbk == N",
        "sbb == K * N",
    )
    return bmm(name, preconditions=packed, most={**largest, **reads})


def wide(name: str, *, bits64: bool, rows: int = 1 << 16, stride: int = 1 << 16) -> Proof:
    """Rows at a stride."""
    return declared(
        name,
        "wide",
        ("M",),
        out("C", "M N", "sc 1"),
        constants={"BN": 16, "WIDE": bits64},
        preconditions=("N <= BN", "N >= 1", "sc >= N"),
        most={"M": rows, "N": 16, "sc": stride},
    )


def counted(name: str, *, programs: int) -> Proof:
    """A persistent loop, whose counter grows by the number of programs."""
    most = {"N": 1 << 20, "sc": 1 << 10, "W": programs}
    return row(name, "persistent", 0, grid="W", preconditions=("W >= 1", "sc >= 1"), most=most)


def branched(name: str, *, limit: int) -> Proof:
    """Rows of which a few lie on one branch, and the rest, whose offsets are as narrow, on the other."""
    return declared(
        name,
        "branched",
        ("M",),
        out("C", "M N", "sc 1"),
        constants={"BN": 16},
        preconditions=("N <= BN", "N >= 1", "sc >= N"),
        most={"M": limit, "N": 16, "sc": 1 << 16},
    )


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


_ONE: Final = (("M", 1), ("N", 1))

SUBJECTS: Final = {
    subject.proof.name: subject
    for subject in (
        # The table of what a prototype had decided.
        Subject(bmm("bmm")),
        Subject(bmm("bmm, mask N - 1", fault=1), _of("C: coverage"), _ONE),
        Subject(bmm("bmm, mask N + 1", fault=2), _of("C: containment"), _ONE, unknown=_of("C: race")),
        Subject(bmm("bmm, floor grid", grid=("(M // BM) * (N // BN)", "B")), _of("C: coverage"), _ONE),
        Subject(tiles("overlapping tiles", "overlap"), _of("C: race", "C: coverage"), (("M", 1), ("N", 65))),
        Subject(bmm("split-K without atomics", grid=(*_TILES, "2")), _of("C: race"), _ONE),
        Subject(tiles("grouped", "grouped", G=8, FAULT=0)),
        Subject(tiles("grouped, tail forgotten", "grouped", G=8, FAULT=1), _of("C: coverage")),
        Subject(
            tiles("flat", "flat", grid=("cdiv(M, BM)", "cdiv(N, BN)"), layout=out("C", "M N", "N 1"), BM=32, BN=128)
        ),
        Subject(declared("in a loop", "in_a_loop", ("M",), _C2, constants={"BN": 128, "FAULT": 0})),
        Subject(split(0)),
        Subject(split(1), _of("Part: coverage")),
        Subject(merge(1)),
        Subject(merge(1, preconditions=("S >= 1",)), _of("Out: coverage"), (("D", 65),)),
        Subject(widths("packed, sizes to 4096", 4096)),
        Subject(widths("packed, sizes to 65536", 65536), _of(": overflow")),
        # Faults in kernels that look like real ones, each beside its right twin.
        Subject(bmm("bmm, K unmasked", fault=3), _of("A: bounds", "Bp: bounds")),
        Subject(
            declared("in a loop, every second tile", "in_a_loop", ("M",), _C2, constants={"BN": 128, "FAULT": 1}),
            _of("C: coverage"),
            (("N", 129),),
        ),
        Subject(row("persistent", "persistent", 0, grid="W", preconditions=("W >= 1",))),
        Subject(
            row("persistent, no tail", "persistent", 1, grid="W", preconditions=("W >= 1",)),
            _of("C: coverage"),
            (("N", 1),),
        ),
        Subject(
            row("persistent, wrong step", "persistent", 2, grid="W", preconditions=("W >= 1",)),
            _of("C: coverage"),
            (("N", 33),),
        ),
        Subject(
            row("persistent, first tile", "persistent", 3, grid="W", preconditions=("W >= 1",)),
            _of("C: coverage"),
            (("N", 1),),
        ),
        Subject(tiles("column-major tiles", "swizzled", grid=_TILES[:1], layout=_C2, BM=16, BN=32, FAULT=0)),
        Subject(
            tiles("column-major tiles, counts swapped", "swizzled", grid=_TILES[:1], layout=_C2, BM=16, BN=32, FAULT=1),
            _of("C: coverage"),
        ),
        Subject(
            tiles(
                "column-major tiles, strides swapped", "swizzled", grid=_TILES[:1], layout=_C2, BM=16, BN=32, FAULT=2
            ),
            _of("C: coverage", "C: containment", "C: race"),
        ),
        Subject(ragged(0)),
        Subject(ragged(1), _of("O: containment", "O: race")),
        Subject(ragged(2), _of("O: coverage")),
        Subject(row("two sites", "two_sites", 0)),
        Subject(
            row("two sites, whole taken wrongly", "two_sites", 1),
            _of("C: containment"),
            (("N", 31),),
            unknown=_of("C: race"),
        ),
        Subject(row("two sites, one missing", "two_sites", 2), _of("C: coverage"), (("N", 1),)),
        Subject(row("backwards", "backwards", 0)),
        Subject(
            row("backwards, one too far", "backwards", 1),
            _of("C: containment", "C: coverage"),
            (("N", 1),),
            unknown=_of("C: race"),
        ),
        Subject(two_outputs(0)),
        Subject(two_outputs(1), _of("L: coverage"), (("M", 1), ("N", 1))),
        Subject(two_outputs(2), _of("L: race"), (("M", 1), ("N", 33))),
        Subject(row("tail", "shifted_tail", 0, preconditions=("N >= BN",))),
        Subject(
            row("tail, moved back", "shifted_tail", 1, preconditions=("N >= BN",)),
            _of("C: race"),
            (("N", 33),),
            unknown=_of("C: coverage"),
        ),
        Subject(row("in place", "in_place", 0)),
        Subject(row("in place, from a neighbour", "in_place", 1), _of("C: race"), (("N", 33),)),
        Subject(row("early return", "early_return", 0)),
        Subject(row("early return, too early", "early_return", 1), _of("C: coverage"), (("N", 1),)),
        Subject(
            declared(
                "heads",
                "heads",
                ("cdiv(H, GROUP)", "cdiv(N, BN)"),
                out("C", "H N", "sch scn"),
                constants={"BN": 16, "GROUP": 4, "FAULT": 0},
            )
        ),
        Subject(
            declared(
                "heads, tail forgotten",
                "heads",
                ("cdiv(H, GROUP)", "cdiv(N, BN)"),
                out("C", "H N", "sch scn"),
                constants={"BN": 16, "GROUP": 4, "FAULT": 1},
            ),
            _of("C: containment"),
            (("H", 1), ("N", 1)),
            unknown=_of("C: race"),
        ),
        Subject(row("one program too many", "shifted_tail", 0, grid="N // BN + 1")),
        Subject(wide("64-bit rows", bits64=True)),
        Subject(wide("32-bit rows", bits64=False), _of(": overflow")),
        Subject(wide("32-bit rows, few", bits64=False, rows=1 << 14)),
        Subject(counted("a loop's counter, many programs", programs=1 << 30)),
        Subject(counted("a loop's counter, too many programs", programs=(1 << 31) - 1), _of(": overflow")),
        Subject(branched("32 bits on another branch", limit=1 << 14)),
        Subject(branched("32 bits on the branch without a limit", limit=1 << 20), _of(": overflow")),
        Subject(
            declared(
                "a long y axis",
                "flat",
                ("cdiv(M, BM)", "cdiv(N, BN)"),
                out("C", "M N", "N 1"),
                constants={"BM": 1, "BN": 1},
                most={"M": 256, "N": 70_000},
            ),
            _of(": grid"),
        ),
        Subject(split_k(0)),
        Subject(split_k(1), _of("Part: coverage"), (("N", 1),)),
        Subject(FIX_UP),
        # What the method does not cover, said with the operation.
        Subject(
            declared("atomic", "atomic", ("cdiv(N, BN)",), out("C", "N", "1"), constants={"BN": 32}),
            out_of_class=_of("C: containment", "C: race", "C: coverage"),
            unknown=_of(": defined"),
        ),
        Subject(
            declared(
                "mask from data",
                "data_mask",
                ("cdiv(N, BN)",),
                out("C", "N", "1"),
                pointers={"X": "fp32"},
                constants={"BN": 32},
            ),
            out_of_class=_of("C: coverage"),
            unknown=_of(": defined", "C: containment", "C: race"),
        ),
        Subject(
            declared(
                "a page table",
                "paged",
                ("M",),
                _C2,
                pointers={"Tab": "i32"},
                constants={"BN": 128},
                preconditions=("N <= BN",),
            ),
            _of("C: containment", "C: race", "C: coverage"),
        ),
        Subject(
            declared(
                "promises that contradict each other",
                "in_a_loop",
                ("M",),
                _C2,
                constants={"BN": 128, "FAULT": 0},
                preconditions=("N >= 5", "N <= 4"),
            ),
            unknown=_of(": defined", "C: containment", "C: race", "C: coverage"),
        ),
    )
}

_PARTS: Final = ("Part",)
FLOWS: Final = {
    (1, 1): (Flow("both guarded", split(1), merge(1), _PARTS), "proved"),
    (0, 0): (Flow("neither guarded", split(0), merge(0), _PARTS), "proved"),
    (1, 0): (Flow("only the writer guarded", split(1), merge(0), _PARTS), "refuted"),
    (0, 2): (Flow("one split too many", split(0), merge(2), _PARTS), "refuted"),
    (8, 0): (Flow("fix-up", split_k(0), FIX_UP, _PARTS), "proved"),
    (8, 1): (Flow("fix-up, a column missing", split_k(1), replace(FIX_UP, name="fix-up of less"), _PARTS), "refuted"),
}

# What the command is given in tests.
RIGHT: Final = SUBJECTS["early return"].proof
WRONG: Final = SUBJECTS["early return, too early"].proof
UNDECIDED: Final = SUBJECTS["atomic"].proof
