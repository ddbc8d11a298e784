"""What happens to an arena whose storage is taken from under it, and to memory that is grown or handed out oddly."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.interception import Interceptor
from sanitizer.plan import TensorPlan
from sanitizer.sandbox import Death, Sandbox
from sanitizer.secrets import Secret
from tests.sanitizer.problems import COLUMNS, ROWS, output, source

CPU = torch.device("cpu")


def _ballast(elements: int) -> TensorPlan:
    return TensorPlan(
        name="ballast", shape=(elements,), strides=(1,), dtype=torch.float32, role="input", values=torch.ones(elements)
    )


SIZES = pytest.mark.parametrize("elements", [0, 300_000], ids=["small", "large"])
LOOKS = {
    Secret.A: Tensor.isnan,
    Secret.B: lambda tensor: tensor.isfinite() & (tensor != 0),  # type: ignore[misc]
    Secret.Z: lambda tensor: tensor == 0,  # type: ignore[misc]
}


@SIZES
@pytest.mark.parametrize("secret", list(Secret), ids=lambda secret: secret.name)
def test_a_replaced_arena_holds_what_the_old_one_held(secret: Secret, elements: int) -> None:
    """The same secret, the same values, and nothing has strayed: the kernel's reallocation is all that is reported."""
    arena = Arena()
    arena.load((source(), output(), _ballast(elements)))
    arena.poison(secret)
    tensors = arena.tensors()
    tensors["out"].untyped_storage().resize_(16)
    assert {finding.clause for finding in arena.layout_changes(tensors)} == {"layout"}
    after = arena.tensors()
    assert torch.equal(after["x"], source().values)  # type: ignore[arg-type]
    assert LOOKS[secret](after["out"]).all()
    assert torch.equal(arena.output_bits("out"), arena.secret_bits("out"))
    assert arena.stray() == []


def test_strays_stay_in_mind_when_the_arena_is_replaced() -> None:
    """Whoever watches where strays land sees those from before and after, until another problem is loaded."""
    arena = Arena()
    arena.load((source(), output()))
    arena.watch_strays()
    for place in (COLUMNS, COLUMNS + 1):
        arena.poison(Secret.A)
        tensors = arena.tensors()
        tensors["out"].as_strided((1,), (1,), int(tensors["out"].storage_offset()) + place).fill_(7.0)
        assert len(arena.stray()) == 1
        tensors["out"].untyped_storage().resize_(16)
        arena.layout_changes(tensors)
    (strays,) = arena.strays().values()
    assert (strays.slots.nonzero().flatten() - strays.first).tolist() == [COLUMNS, COLUMNS + 1]
    assert not strays.elements.any()
    arena.load((source(), output()))
    assert arena.strays() == {}


@SIZES
@pytest.mark.parametrize("live", [True, False], ids=["live", "dead"])
def test_a_number_without_dimensions_is_live_or_dead_like_any_element(live: bool, elements: int) -> None:
    """Dead, it holds the secret; live, its value."""
    number = TensorPlan(
        name="number",
        shape=(),
        strides=(),
        dtype=torch.float32,
        role="input",
        values=torch.tensor(3.0),
        live=torch.tensor(live),
    )
    arena = Arena()
    arena.load((number, output(), _ballast(elements)))
    for secret in Secret:
        arena.poison(secret)
        held = arena.tensors()["number"]
        assert held.item() == 3.0 if live else LOOKS[secret](held)
        assert arena.stray() == []


@SIZES
def test_dead_elements_that_share_memory_with_dead_ones_alone_hold_secrets(elements: int) -> None:
    """Rows that overlap by half, the last one dead: what only it covers is secret, whatever lies in front of it."""
    live = torch.ones(ROWS, 1, dtype=torch.bool)
    live[-1] = False
    arena = Arena()
    arena.load((output(), _ballast(elements), source(live=live, strides=(2, 1))))
    for secret in Secret:
        arena.poison(secret)
        tensors = arena.tensors()
        assert LOOKS[secret](tensors["x"][-1, 2:]).all()
        assert (tensors["ballast"] == 1).all()
        assert LOOKS[secret](tensors["out"]).all()
        first = int(tensors["x"].storage_offset())
        assert LOOKS[secret](tensors["x"].as_strided((16,), (1,), first - 16)).all()
        assert arena.stray() == []


def test_memory_of_another_device_may_grow_as_it_likes() -> None:
    """A meta tensor has none: nothing is guarded, and nothing counted but its own making."""
    with Interceptor(Secret.A, CPU) as interceptor:
        grown = torch.empty(2, device="meta").resize_(10)
    assert grown.shape == (10,)
    assert (interceptor.intercepted, interceptor.allocations) == (0, 1)


def test_shrinking_and_growing_within_what_was_handed_out_takes_no_memory() -> None:
    """Only growth beyond it moves, and the part that was there comes along."""
    with Interceptor(Secret.A, CPU) as interceptor:
        tensor = torch.empty(ROWS, COLUMNS).fill_(1.0)
        address = tensor.data_ptr()
        tensor.resize_(2).resize_(ROWS * COLUMNS)
        assert (tensor.data_ptr(), interceptor.allocations) == (address, 1)
        tensor.resize_(ROWS * COLUMNS + 1)
    assert tensor.data_ptr() != address
    assert (interceptor.intercepted, interceptor.allocations) == (2, 2)
    assert tensor[:-1].tolist() == [1.0] * (ROWS * COLUMNS)
    assert tensor[-1].isnan()
    assert interceptor.guard_hits() == []


def test_a_spawned_worker_dies_in_the_same_words_as_a_forked_one() -> None:
    """By a signal or with a status, though the parent itself collects it; the next request gets a new one."""
    with Sandbox("tests.sanitizer.services:obeying", None, start="spawn", preload=()) as sandbox:
        ends = [
            sandbox.request({"do": "signal", "number": int(signal.SIGSEGV)}, timeout=60.0),
            sandbox.request({"do": "exit", "status": 7}, timeout=60.0),
        ]
        assert all(isinstance(end, Death) for end in ends)
        assert [(end.kind, end.how) for end in ends] == [
            ("signal", "killed by SIGSEGV"),
            ("exit", "exited with status 7"),
        ]
        assert sandbox.request({"do": "echo", "what": 5}, timeout=60.0) == 5
        assert sandbox.deaths == 2
