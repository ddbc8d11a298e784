"""Devices: which one a run uses, which one a worker is pinned to, and how much of its memory a worker may take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import torch
from hypothesis import find
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from mla_verify.budget import BYTES_PER_ELEMENT, budget_of, fitting, most_elements, sharing, workers_on
from mla_verify.devices import device_of_worker, resolve_device
from mla_verify.errors import ExitCode, Unavailable, UsageError
from strategies.extents import elements_of
from strategies.problems import UpProjectionProblem

ROOT: Final = Path(__file__).resolve().parents[2]
GIB: Final = 1 << 30


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a machine on which torch sees three GPUs, the second being the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 * GIB, 96 * GIB))  # pyright: ignore[reportUnknownLambdaType]


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which torch sees no GPU, whatever this one has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_is_absent_is_unavailable(name: str) -> None:
    """Asking for a GPU on a machine without one is no wrong usage: the device is unavailable, exit code 3."""
    with pytest.raises(Unavailable, match=f"there is no {name} here: torch sees no GPU") as raised:
        resolve_device(name)
    assert raised.value.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "mps", "meta"])
def test_a_word_that_is_no_device_of_ours_is_wrong_usage(name: str) -> None:
    """An unknown device name is wrong usage, exit code 2, whatever the machine has."""
    with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
        resolve_device(name)


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_found_by_its_number_or_as_the_current_one() -> None:
    """`cuda` is the current GPU, `cuda:N` the one with that number, and a number too high is unavailable."""
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:2") == torch.device("cuda", 2)
    with pytest.raises(Unavailable, match="cuda:0 to cuda:2"):
        resolve_device("cuda:3")


@pytest.mark.usefixtures("gpus")
def test_workers_are_pinned_in_turn() -> None:
    """Worker w runs on GPU w modulo their number; a GPU that was named by number, and the CPU, stay what they are."""
    assert [device_of_worker("cuda", f"gw{worker}") for worker in range(5)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:0",
        "cuda:1",
    ]
    assert device_of_worker("cuda:2", "gw0") == "cuda:2"
    assert device_of_worker("cpu", "gw7") == "cpu"
    assert device_of_worker("cuda", None) == "cuda"


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 5, 16])
def test_every_worker_is_on_exactly_one_device(devices: int, workers: int) -> None:
    """The workers of all devices together are the workers there are, and no device has two more than another."""
    counts = [workers_on(index, workers=workers, devices=devices) for index in range(devices)]
    assert sum(counts) == workers
    assert max(counts) - min(counts) <= 1


@pytest.mark.usefixtures("gpus")
def test_a_named_gpu_is_shared_by_all_workers() -> None:
    """Workers told to use one GPU by number share it, all of them; those told `cuda` are spread."""
    assert sharing("cuda:2", torch.device("cuda", 2), workers=5) == 5
    assert [sharing("cuda", torch.device("cuda", index), workers=5) for index in range(3)] == [2, 2, 1]


def test_the_budgets_of_all_workers_leave_room() -> None:
    """What all workers of a device may take, with a context each, never exceeds nine tenths of what was free."""
    for free in (0, GIB, 8 * GIB, 80 * GIB):
        for workers in (1, 2, 7, 16):
            budget = budget_of(free, workers=workers)
            assert budget >= 0
            assert budget == 0 or workers * (budget + GIB) <= free - free // 10


@pytest.mark.usefixtures("gpus")
def test_problems_are_capped_to_the_budget() -> None:
    """A worker draws no problem that would take more than its share; on a CPU nothing is capped."""
    assert most_elements(torch.device("cpu"), workers=9) is None
    most = most_elements(torch.device("cuda", 0), workers=8)
    assert most == budget_of(80 * GIB, workers=8) // BYTES_PER_ELEMENT
    sizes = st.integers(1, 64).map(lambda tokens: UpProjectionProblem(num_tokens=tokens, num_heads=2))
    cap = elements_of(UpProjectionProblem(num_tokens=9, num_heads=2))
    largest = find(fitting(sizes, cap), lambda problem: problem.num_tokens >= 9)
    assert largest.num_tokens == 9
    with pytest.raises(NoSuchExample):
        find(fitting(sizes, cap), lambda problem: problem.num_tokens > 9)
    assert fitting(sizes, None) is sizes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "up_projection_direct", "--device", "cuda"),
        ("replay", "tests/cases/decode-uniform.json", "--device", "cuda:1"),
        ("gate", "up_projection_direct", "--device", "cuda"),
        ("bench", "up-projection", "--device", "cuda"),
        ("list", "--device", "cuda"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_ends_with_3_and_one_sentence_without_a_gpu(arguments: tuple[str, ...]) -> None:
    """`--device cuda` on a machine without a GPU: exit code 3, one sentence on stderr, nothing on stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "mla_verify", *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == ExitCode.UNAVAILABLE
    assert done.stdout == ""
    assert done.stderr.startswith("mla-verify: there is no cuda")
    assert done.stderr.endswith("torch sees no GPU; use --device cpu\n")
    assert done.stderr.count("\n") == 1
