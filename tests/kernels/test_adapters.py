"""Adapters of other people's kernels say why they cannot run, and undo what they stand in for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest
import torch

from mla_verify.errors import Unavailable
from mla_verify.kernels import foreign, sglang_triton
from mla_verify.loading import open_bench
from mla_verify.registry import registered, resolve

_ADAPTED: Final = ("aiter_", "flashinfer_", "flashmla_", "sglang_", "vllm_triton", "vllm_v_up_proj_")
_PACKAGES: Final = {"aiter": "aiter", "flashinfer": "flashinfer", "flashmla": "flash_mla"}
_GPU_ONLY: Final = (
    "aiter_mla_decode_persistent",
    "aiter_mla_decode_persistent_claim",
    "aiter_mla_decode_persistent_zeros",
    "flashinfer_mla_decode",
    "flashinfer_mla_decode_zeros",
    "flashmla_decode",
)


def test_a_package_that_is_not_there_is_named() -> None:
    """The sentence says which package is missing."""
    with pytest.raises(Unavailable, match="no_such_package is not installed"):
        foreign.find_source("no_such_package", "part.py")


def test_a_file_that_a_version_lacks_is_named() -> None:
    """An installed package without the file is told apart from a missing one."""
    with pytest.raises(Unavailable, match=r"mla_verify is installed, but has no kernels/none\.py"):
        foreign.find_source("mla_verify", "kernels/none.py")


def test_stand_ins_leave_no_trace() -> None:
    """After loading, imports find what they found before: nothing, or the real module."""
    real = sys.modules["pathlib"]
    modules = {"pathlib": foreign.stand_in("pathlib"), "not_there": foreign.stand_in("not_there", answer=42)}
    with foreign.standing_in(modules):
        assert sys.modules["pathlib"] is not real
        assert sys.modules["not_there"].answer == 42
    assert sys.modules["pathlib"] is real
    assert "not_there" not in sys.modules


def test_a_source_that_does_not_load_says_why(tmp_path: Path) -> None:
    """What keeps a file from loading by itself is part of the sentence."""
    path = tmp_path / "kernel.py"
    path.write_text("import no_such_package\n")
    with pytest.raises(Unavailable, match=r"kernel\.py does not load by itself: No module named 'no_such_package'"):
        foreign.load_source("kernel", path, {})


@pytest.mark.parametrize("name", [kernel.name for kernel in registered() if kernel.name.startswith(_ADAPTED)])
def test_an_adapter_loads_or_says_why_not(name: str) -> None:
    """Where a library is absent the kernel is unavailable, in one line that names what is missing."""
    (kernel,) = (kernel for kernel in registered() if kernel.name == name)
    said = ""
    try:
        open_bench(kernel)
    except Unavailable as reason:
        said = str(reason)
    assert "\n" not in said
    assert not said or any(word in said.lower() for word in ("install", "triton", "rocm", "cuda"))


def _package(name: str) -> str:
    return next(package for prefix, package in _PACKAGES.items() if name.startswith(prefix))


def _nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize("name", _GPU_ONLY)
def test_an_adapter_for_gpus_names_the_library_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not installed is said first, whether or not there is a GPU."""
    package = _package(name)
    monkeypatch.setattr(foreign.importlib.util, "find_spec", _nothing)
    with pytest.raises(Unavailable, match=f"^{package} is not installed$"):
        resolve(name).load()


@pytest.mark.parametrize("name", _GPU_ONLY)
def test_an_adapter_for_gpus_asks_for_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed library without a GPU is not imported: the sentence says what it needs."""
    package = tmp_path / _package(name)
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(foreign.torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"needs (an NVIDIA GPU and a CUDA|an AMD GPU and a ROCm) build of torch$"):
        resolve(name).load()


@pytest.mark.parametrize("name", _GPU_ONLY)
def test_an_adapter_for_gpus_does_not_run_on_a_cpu(name: str) -> None:
    """Its device is declared, and the report says that nobody has run it yet."""
    kernel = resolve(name)
    with pytest.raises(Unavailable, match="runs on cuda, not on cpu"):
        open_bench(kernel)
    assert any("never run on a GPU" in note for note in kernel.notes)


def test_slots_are_counted_in_tokens_for_sglang() -> None:
    """Pages become the slots of their keys, in order; a partial page and an empty request add what they hold."""
    token_index = sglang_triton._token_index  # pyright: ignore[reportPrivateUsage]  # the conversion by itself
    indptr, slots = token_index(
        torch.tensor([0, 2, 2, 3], dtype=torch.int32),
        torch.tensor([5, 1, 7, -1], dtype=torch.int32),  # the last entry is a tail
        torch.tensor([6, 0, 1], dtype=torch.int32),
        4,
    )
    assert indptr.tolist() == [0, 6, 6, 7]
    assert slots.tolist() == [20, 21, 22, 23, 4, 5, 28]
