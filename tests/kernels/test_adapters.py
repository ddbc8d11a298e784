"""Adapters of other people's kernels say why they cannot run, and undo what they stand in for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mla_verify.errors import Unavailable
from mla_verify.kernels import foreign
from mla_verify.loading import open_bench
from mla_verify.registry import registered


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


@pytest.mark.parametrize(
    "name", [kernel.name for kernel in registered() if kernel.name.startswith(("aiter_", "vllm_triton", "sglang_"))]
)
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
