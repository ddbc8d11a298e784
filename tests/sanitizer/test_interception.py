"""Memory from torch's factories comes with a secret in it and guards around it."""

from __future__ import annotations

import ctypes
import warnings

import pytest
import torch
from torch import Tensor

from sanitizer.interception import Interceptor
from sanitizer.secrets import Secret

CPU = torch.device("cpu")


def factories() -> dict[str, Tensor]:
    """One tensor from every factory that hands out uninitialised memory."""
    base = torch.ones(4, 6)
    return {
        "empty": torch.empty(4, 6),
        "empty_like": torch.empty_like(base),
        "empty_permuted": torch.empty_permuted((4, 6), (1, 0)),
        "empty_strided": torch.empty_strided((4, 6), (8, 1)),
        "new_empty": base.new_empty(4, 6),
        "new_empty_strided": base.new_empty_strided((4, 6), (1, 4)),
        "constructor": torch.Tensor(4, 6),
        "grown": torch.empty(2).resize_(4, 6),
        "grown from nothing": torch.empty(0).resize_(4, 6),
    }


@pytest.mark.parametrize("secret", list(Secret))
def test_every_factory_hands_out_secrets(secret: Secret) -> None:
    """NaN, ordinary numbers or zeros, in a tensor of the form that was asked for."""
    plain = factories()
    with Interceptor(secret, CPU) as interceptor:
        guarded = factories()
    assert interceptor.intercepted >= len(plain)
    for name, tensor in guarded.items():
        assert tensor.shape == plain[name].shape
        assert tensor.stride() == plain[name].stride()
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == plain[name].untyped_storage().nbytes()
        assert tensor.data_ptr() % 64 == 0
        holds = {Secret.A: tensor.isnan(), Secret.B: tensor.isfinite() & (tensor != 0), Secret.Z: tensor == 0}
        assert holds[secret].all(), name
    assert interceptor.guard_hits() == []


def test_growth_keeps_the_old_elements() -> None:
    """`resize_` hands out more memory; what was there stays."""
    with Interceptor(Secret.A, CPU):
        tensor = torch.empty(3).fill_(5)
        tensor.resize_(6)
    assert tensor[:3].tolist() == [5, 5, 5]
    assert tensor[3:].isnan().all()


def test_growth_through_out_works() -> None:
    """Operators may enlarge what they are given, guarded or not."""
    with Interceptor(Secret.A, CPU), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates, once a process, what the test is about
        small, nothing = torch.empty(2), torch.empty(0)
        torch.add(torch.ones(5), 1, out=small)
        torch.add(torch.ones(5), 1, out=nothing)
    assert small.tolist() == nothing.tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("offset", "words"), [(12, "guard behind scratch 0"), (-4, "guard in front of scratch 0")], ids=["behind", "before"]
)
def test_writes_beside_scratch_are_found(offset: int, words: str) -> None:
    """A kernel that steps outside of its scratch is told which scratch, and where that came from."""
    with Interceptor(Secret.B, CPU) as interceptor:
        scratch = torch.empty(3)
        ctypes.memset(scratch.data_ptr() + offset, 0x55, 4)
    (finding,) = interceptor.guard_hits()
    assert finding.clause == "containment"
    assert words in finding.detail
    assert "torch.empty [3] at test_interception.py:" in finding.detail
    assert interceptor.guard_hits() == [], "the guards are whole again"


def test_freed_scratch_is_checked_before_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that allocates in a loop does not pile memory up, and still has its guards checked."""
    monkeypatch.setattr("sanitizer.interception._HELD", 10_000)
    with Interceptor(Secret.A, CPU) as interceptor:
        for index in range(100):
            scratch = torch.empty(256)
            if index == 3:
                ctypes.memset(scratch.data_ptr() + 1024, 0x55, 1)
            del scratch
    assert len(interceptor.scratches) < 20
    assert len(interceptor.guard_hits()) == 1


def test_other_devices_and_empty_tensors_are_left_alone() -> None:
    """Meta tensors have no memory, and a tensor without elements must be free to grow."""
    with Interceptor(Secret.A, CPU) as interceptor:
        torch.empty(3, device="meta")
        torch.empty(0)
    assert interceptor.intercepted == 0
    assert interceptor.allocations == 2


def test_initialised_memory_is_counted_and_untouched() -> None:
    """zeros, ones and full are allocations, not secrets."""
    with Interceptor(Secret.A, CPU) as interceptor:
        assert torch.zeros(3).sum() == 0
        assert torch.ones(3).sum() == 3
        assert torch.full((3,), 2.0).sum() == 6
    assert (interceptor.intercepted, interceptor.allocations, interceptor.allocated_bytes) == (0, 3, 36)


def test_errors_of_operators_pass_through() -> None:
    """A kernel's mistake stays the kernel's mistake."""
    with Interceptor(Secret.A, CPU), pytest.raises(RuntimeError):
        torch.empty(-1)
    with Interceptor(Secret.A, CPU), pytest.raises(RuntimeError):
        torch.add(torch.ones(2), torch.ones(3), out=torch.empty(2))


def test_memory_formats_are_kept() -> None:
    """channels_last stays channels_last."""
    with Interceptor(Secret.A, CPU):
        tensor = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert tensor.isnan().all()
