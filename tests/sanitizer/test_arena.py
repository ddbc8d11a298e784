"""The arena holds what it was told to, puts secrets into everything else, and notices every byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.plan import Element, Fills, TensorPlan
from sanitizer.secrets import Secret
from tests.sanitizer.problems import COLUMNS, ROWS, output, source


def ballast(elements: int) -> TensorPlan:
    """An input that makes the problem large enough for a single image."""
    return TensorPlan(
        name="ballast", shape=(elements,), strides=(1,), dtype=torch.float32, role="input", values=torch.ones(elements)
    )


def loaded(*plans: TensorPlan) -> Arena:
    """An arena with a problem in it, poisoned with NaN."""
    arena = Arena()
    arena.load(plans)
    arena.poison(Secret.A)
    return arena


def _ordinary(tensor: Tensor) -> Tensor:
    return tensor.isfinite() & (tensor != 0)


def _zero(tensor: Tensor) -> Tensor:
    return tensor == 0


SIZES = pytest.mark.parametrize("elements", [0, 300_000], ids=["small", "large"])


@SIZES
def test_inputs_hold_their_values_and_everything_else_the_secret(elements: int) -> None:
    """Under every secret: values in live elements; NaN, ordinary numbers or zeros in gaps, guards and outputs."""
    live = torch.ones(ROWS, 1, dtype=torch.bool)
    live[1] = False
    arena = loaded(ballast(elements), source(live=live, guard=256), output())
    checks = {Secret.A: Tensor.isnan, Secret.B: _ordinary, Secret.Z: _zero}
    for secret in (Secret.A, Secret.B, Secret.Z, Secret.A):
        arena.poison(secret)
        x, out = arena.tensors()["x"], arena.tensors()["out"]
        holds = checks[secret]
        assert torch.equal(x[::2], source().values[::2])  # type: ignore[index]
        assert holds(x[1]).all(), "an element that is not live"
        assert holds(x.as_strided((ROWS - 1, 2), (COLUMNS + 2, 1), int(x.storage_offset()) + COLUMNS)).all(), "gaps"
        assert holds(x.as_strided((64,), (1,), int(x.storage_offset()) - 64)).all(), "the guard in front"
        last = int(x.storage_offset()) + (ROWS - 1) * (COLUMNS + 2) + COLUMNS
        assert holds(x.as_strided((64,), (1,), last)).all(), "the guard behind"
        assert holds(out).all()
        assert arena.stray() == []


@SIZES
def test_fills_decide_what_undeclared_memory_holds(elements: int) -> None:
    """Preconditions and index tables choose their own secrets."""
    live = torch.tensor([True, True, False])
    table = TensorPlan(
        name="table",
        shape=(3,),
        strides=(1,),
        dtype=torch.int32,
        role="input",
        values=torch.tensor([4, 5, 6], dtype=torch.int32),
        live=live,
        fills=Fills(a=-1, b=9, z=0),
    )
    arena = loaded(ballast(elements), table)
    for secret, tail in ((Secret.A, -1), (Secret.B, 9), (Secret.Z, 0)):
        arena.poison(secret)
        assert arena.tensors()["table"].tolist() == [4, 5, tail]


@SIZES
@pytest.mark.parametrize("inner", [1, 6], ids=["single", "rows"])
def test_dead_elements_of_any_pattern_hold_secrets(elements: int, inner: int) -> None:
    """Liveness may be said per page, per slot, or per element."""
    shape = (4, 3, inner)
    live = torch.rand(4, 3, 1, generator=torch.Generator().manual_seed(0)) < 0.5
    plan = TensorPlan(
        name="cache",
        shape=shape,
        strides=(3 * inner + 2, inner, 1),
        dtype=torch.bfloat16,
        role="input",
        values=torch.ones(shape, dtype=torch.bfloat16),
        live=live,
    )
    arena = loaded(ballast(elements), plan)
    assert torch.equal(arena.tensors()["cache"].isnan(), ~live.expand(shape))


@SIZES
@pytest.mark.parametrize("strides", [(0, 1), (2, 1), (0, 0)], ids=str)
def test_memory_that_live_and_dead_elements_share_is_live(elements: int, strides: tuple[int, int]) -> None:
    """A dead row that overlaps a live one puts no secret into it."""
    live = torch.ones(ROWS, 1, dtype=torch.bool)
    live[-1] = False
    arena = loaded(ballast(elements), source(live=live, strides=strides))
    seen: list[Tensor] = []
    for secret in Secret:
        arena.poison(secret)
        seen.append(arena.tensors()["x"][:-1].clone())
        assert arena.stray() == []
    assert seen[0].isfinite().all()
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


@SIZES
def test_every_single_byte_is_watched(elements: int) -> None:
    """Whichever byte outside of the outputs is changed, it is noticed and mended."""
    arena = loaded(source(), output(), ballast(elements))
    whole = arena.tensors()["x"].untyped_storage()
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(whole)
    out = arena.tensors()["out"]
    free: set[int] = set()
    for row in range(ROWS):
        first = (int(out.storage_offset()) + row * (COLUMNS + 3)) * 4
        free |= set(range(first, first + COLUMNS * 4))
    for place in range(min(700, bytes_.numel())):
        bytes_[place] += 1
        assert bool(arena.stray()) == (place not in free), place
        assert arena.stray() == []
        arena.poison(Secret.A)


def test_addresses_stay_and_objects_do_not() -> None:
    """Every run sees the same addresses through new tensor objects."""
    arena = loaded(source(), output(), output_named("own", form="owner"))
    before, after = arena.tensors(), arena.tensors()
    for name, tensor in before.items():
        assert tensor is not after[name]
        assert tensor.data_ptr() == after[name].data_ptr()


def output_named(name: str, **changes: Any) -> TensorPlan:
    """Another output."""
    return TensorPlan(
        name=name, shape=(ROWS, COLUMNS), strides=(COLUMNS + 3, 1), dtype=torch.float32, role="output", **changes
    )


def test_an_owner_has_storage_of_exactly_its_extent() -> None:
    """The last element of the tensor is the last of its storage, as if torch had just made it."""
    own = loaded(output_named("own", form="owner")).tensors()["own"]
    assert own.storage_offset() == 0
    assert own.untyped_storage().nbytes() == ((ROWS - 1) * (COLUMNS + 3) + COLUMNS) * 4
    assert own.untyped_storage().resizable()


def test_starts_are_aligned_unless_offset() -> None:
    """An offset of one element is one element away from an address aligned to 64 bytes."""
    tensors = loaded(source(), output(offset=1)).tensors()
    assert tensors["x"].data_ptr() % 64 == 0
    assert tensors["out"].data_ptr() % 64 == 4


def test_guards_are_as_wide_as_asked() -> None:
    """A decode cache asks for a page on either side."""
    arena = loaded(source(guard=5000), output(guard=64))
    tensors = arena.tensors()
    assert int(tensors["x"].storage_offset()) * 4 >= 5000
    end = tensors["x"].data_ptr() + ((ROWS - 1) * (COLUMNS + 2) + COLUMNS) * 4
    assert tensors["out"].data_ptr() - end >= 5000 + 64


def test_the_arena_grows_and_never_shrinks() -> None:
    """A smaller problem after a larger one takes no new memory."""
    arena = loaded(source(), ballast(300_000))
    before = arena.nbytes
    arena.load((source(), output()))
    assert arena.nbytes == before


def test_memory_stays_near_twice_the_tensors() -> None:
    """Arena and image, for a large problem with a large gap."""
    plan = TensorPlan(
        name="w",
        shape=(16, 64, 128),
        strides=(256 * 64, 1, 64),
        dtype=torch.bfloat16,
        role="input",
        values=torch.ones(16, 64, 128, dtype=torch.bfloat16),
    )
    arena = loaded(plan)
    assert arena.nbytes < 2.1 * (15 * 256 * 64 + 128 * 64) * 2


@SIZES
def test_a_storage_that_the_kernel_reallocates_is_reported_and_replaced(elements: int) -> None:
    """C++ code may resize a storage past every interception."""
    arena = loaded(source(), output(), ballast(elements))
    tensors = arena.tensors()
    tensors["out"].untyped_storage().resize_(tensors["out"].untyped_storage().nbytes() * 2)
    assert [finding.clause for finding in arena.layout_changes(tensors)] == ["layout"]
    arena.poison(Secret.B)
    assert torch.equal(arena.tensors()["x"], source().values)  # type: ignore[arg-type]
    assert arena.stray() == []


@SIZES
def test_untouched_rows_are_watched_and_free_ones_are_not(elements: int) -> None:
    """Rules decide per element."""
    rules = torch.tensor([[Element.FREE], [Element.UNTOUCHED], [Element.WRITTEN]], dtype=torch.uint8)
    arena = loaded(ballast(elements), output(rules=rules))
    arena.tensors()["out"][0] = 1
    arena.tensors()["out"][2] = 1
    assert arena.stray() == []
    arena.poison(Secret.A)
    arena.tensors()["out"][1, 1:3] = 1
    (finding,) = arena.stray()
    assert (finding.clause, finding.elements) == ("containment", 2)


def test_a_tensor_over_nothing_is_refused() -> None:
    """The plan is wrong, and says so in the caller's words."""
    with pytest.raises(ValueError, match="out lies over y, which is no earlier tensor"):
        Arena().load((source(), output(over="y")))
