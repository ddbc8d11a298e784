"""Problems to JSON and back. Reading trusts nothing: a case file may come from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, cast, get_args

from strategies.extents import elements_of
from strategies.invalid import DECODE_INVALID, UP_PROJECTION_INVALID
from strategies.layouts import INPUT_ONLY, Layout, LayoutKind
from strategies.problems import DecodeProblem, OutputForm, PageOrder, Problem, UpProjectionProblem
from strategies.vocabulary import (
    DECODE_FORMATS,
    DECODE_REGIMES,
    DECODE_SCALES,
    DTYPES,
    FP8_FORMATS,
    UP_PROJECTION_REGIMES,
    WEIGHT_FORMATS,
)

__all__ = ["ProblemError", "problem_from_json", "problem_to_json"]

_MAX_SIZE: Final = 1 << 20  # of one dimension, length or stride gap
_MAX_SPLITS: Final = 1 << 12
_MAX_REQUESTS: Final = 1 << 16
_MAX_ELEMENTS: Final = 1 << 30  # of all tensors together: no case may ask for all memory of a machine
_MAX_SEED: Final = (1 << 63) - 1
_MAX_SCALE: Final = 64

Reader = Callable[[str, object], Any]  # (field, JSON value) → the field's value


class ProblemError(ValueError):
    """What was read is no problem; the message says which field, what it holds and what it may hold."""


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Every field by its name, and the contract's name: only dicts, lists, strings, ints, bools and None."""
    contract = "decode" if isinstance(problem, DecodeProblem) else "up-projection"
    return {
        "contract": contract,
        **{field.name: _plain(getattr(problem, field.name)) for field in fields(problem)},
    }


def problem_from_json(data: object) -> Problem:
    """The problem that `problem_to_json` wrote, now or before it had all of its fields.

    Raises `ProblemError` for anything else.
    """
    members = _members("problem", data)
    contract = members.pop("contract", None)
    if not isinstance(contract, str) or contract not in _CONTRACTS:
        raise ProblemError(_wanted("contract", contract, " or ".join(_CONTRACTS)))
    build, readers = _CONTRACTS[contract]
    members = {**_YOUNGER[contract], **members}
    _same_names("problem", members, readers)
    problem = build(**{name: read(name, members[name]) for name, read in readers.items()})
    _check_whole(problem)
    return problem


def _check_whole(problem: Problem) -> None:
    """What no field can tell alone: lists that belong together, and how much all of it is."""
    if isinstance(problem, DecodeProblem):
        requests = len(problem.kv_lens)
        if len(problem.q_lens) != requests:
            raise ProblemError(_wanted("q_lens", problem.q_lens, f"one for each of {requests} requests"))
        if problem.q_format not in ("plain", problem.kv_format):
            raise ProblemError(_wanted("q_format", problem.q_format, f"plain or the cache's, {problem.kv_format}"))
        for name in ("q", "kv"):
            format_name, scale = getattr(problem, f"{name}_format"), getattr(problem, f"{name}_scale")
            if format_name == "plain" and scale != "1":
                raise ProblemError(_wanted(f"{name}_scale", scale, "1 where there are no codes"))
        # Rows and pages are walked one by one in places, even where their tensors are empty.
        for name, count in (("q_lens", problem.num_rows), ("kv_lens", sum(problem.pages_per_request))):
            if count > _MAX_SIZE:
                raise ProblemError(f"{name}: {count} rows or pages in all, wanted at most {_MAX_SIZE}")
    elif problem.weight_format == "mxfp4" and problem.kv_lora_rank % 2:
        raise ProblemError(_wanted("kv_lora_rank", problem.kv_lora_rank, "an even int where the weight is mxfp4"))
    elif problem.weight_format != "fp8" and problem.fp8_format != "e4m3fn":
        raise ProblemError(_wanted("fp8_format", problem.fp8_format, "e4m3fn where the weight is not fp8"))
    elements = elements_of(problem)
    if elements > _MAX_ELEMENTS:
        raise ProblemError(f"problem: its tensors span {elements} elements, wanted at most {_MAX_ELEMENTS}")


def _plain(value: object) -> object:
    if isinstance(value, Layout):
        return {"kind": value.kind, "pad": value.pad, "offset": value.offset}
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def _wanted(name: str, got: object, wanted: str) -> str:
    shown = repr(got)
    return f"{name}: got {shown if len(shown) <= 60 else shown[:57] + '...'}, wanted {wanted}"


def _members(name: str, value: object) -> dict[str, object]:
    """A JSON object's members, in a dict of our own."""
    if not isinstance(value, dict):
        raise ProblemError(_wanted(name, value, "a JSON object"))
    members = cast("dict[object, object]", value)
    for key in members:
        if not isinstance(key, str):
            raise ProblemError(_wanted(name, key, "names as keys"))
    return cast("dict[str, object]", dict(members))


def _same_names(name: str, members: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    for missing in wanted.keys() - members.keys():
        raise ProblemError(f"{name}: {missing} is missing")
    for unknown in members.keys() - wanted.keys():
        raise ProblemError(_wanted(name, unknown, f"no other fields than {', '.join(wanted)}"))


def _integer(minimum: int, maximum: int) -> Reader:
    def read(name: str, value: object) -> int:
        # A bool is an int to Python, and 1.0 equals 1: neither is what we write.
        if type(value) is not int or not minimum <= value <= maximum:
            raise ProblemError(_wanted(name, value, f"an int from {minimum} to {maximum}"))
        return value

    return read


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ProblemError(_wanted(name, value, "true or false"))
    return value


def _word(words: tuple[str, ...]) -> Reader:
    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ProblemError(_wanted(name, value, f"one of {', '.join(words)}"))
        return value

    return read


def _fault(kinds: tuple[str, ...]) -> Reader:
    word = _word(kinds)

    def read(name: str, value: object) -> str | None:
        return None if value is None else word(name, value)

    return read


def _lengths(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(cast("list[object]", value)) > _MAX_REQUESTS:
        raise ProblemError(_wanted(name, value, f"a list of at most {_MAX_REQUESTS} lengths"))
    return tuple(_size(name, length) for length in cast("list[object]", value))


def _layout(kinds: tuple[LayoutKind, ...]) -> Reader:
    readers: dict[str, Reader] = {"kind": _word(kinds), "pad": _size, "offset": _size}

    def read(name: str, value: object) -> Layout:
        members = _members(name, value)
        _same_names(name, members, readers)
        return Layout(**{part: reader(f"{name}.{part}", members[part]) for part, reader in readers.items()})

    return read


_size: Final = _integer(0, _MAX_SIZE)
_count: Final = _integer(1, _MAX_SIZE)
_seed: Final = _integer(0, _MAX_SEED)
_dtype: Final = _word(DTYPES)
_out_form: Final = _word(get_args(OutputForm))
_any_layout: Final = _layout(get_args(LayoutKind))
_own_layout: Final = _layout(tuple(kind for kind in get_args(LayoutKind) if kind not in INPUT_ONLY))

_UP_PROJECTION: Final[dict[str, Reader]] = {
    "num_tokens": _size,
    "num_heads": _size,
    "kv_lora_rank": _size,
    "v_head_dim": _size,
    "dtype": _dtype,
    "regime": _word(UP_PROJECTION_REGIMES),
    "x_layout": _any_layout,
    "w_layout": _any_layout,
    "out_layout": _own_layout,
    "out_form": _out_form,
    "seed": _seed,
    "invalid": _fault(tuple(UP_PROJECTION_INVALID)),
    "weight_format": _word(WEIGHT_FORMATS),
    "fp8_format": _word(FP8_FORMATS),
}
_DECODE: Final[dict[str, Reader]] = {
    "kv_lens": _lengths,
    "q_lens": _lengths,
    "num_heads": _size,
    "kv_lora_rank": _size,
    "qk_rope_head_dim": _size,
    "page_size": _count,
    "num_kv_splits": _integer(1, _MAX_SPLITS),
    "dtype": _dtype,
    "regime": _word(DECODE_REGIMES),
    "padding_rows": _size,
    "with_lse": _flag,
    "q_layout": _any_layout,
    "o_layout": _own_layout,
    "lse_layout": _own_layout,
    "out_form": _out_form,
    "page_pad": _size,
    "cache_offset": _size,
    "page_order": _word(get_args(PageOrder)),
    "foreign_pages": _count,
    "table_slack": _size,
    "table_layout": _own_layout,
    "index_tail": _size,
    "softmax_scale": _integer(-_MAX_SCALE, _MAX_SCALE),
    "seed": _seed,
    "invalid": _fault(tuple(DECODE_INVALID)),
    "q_format": _word(DECODE_FORMATS),
    "kv_format": _word(DECODE_FORMATS),
    "q_scale": _word(DECODE_SCALES),
    "kv_scale": _word(DECODE_SCALES),
}
_CONTRACTS: Final[dict[str, tuple[Callable[..., Problem], dict[str, Reader]]]] = {
    "up-projection": (UpProjectionProblem, _UP_PROJECTION),
    "decode": (DecodeProblem, _DECODE),
}
# Fields that older files do not have, and what their problems meant by that.
_YOUNGER: Final[dict[str, dict[str, object]]] = {
    "up-projection": {"weight_format": "plain", "fp8_format": "e4m3fn"},
    "decode": {"q_format": "plain", "kv_format": "plain", "q_scale": "1", "kv_scale": "1"},
}
