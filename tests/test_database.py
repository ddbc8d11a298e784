"""Hypothesis' database: failures are remembered from run to run, shared, and never forgotten by a later search."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis.database import InMemoryExampleDatabase
from torch import Tensor

from mla_verify.check import check
from mla_verify.databases import Losable, open_database
from mla_verify.errors import UsageError
from mla_verify.kernel import Kernel
from mla_verify.report import Report
from strategies.limits import UpProjectionLimits

ROOT: Final = Path(__file__).resolve().parent.parent
RARE: Final = (17, 5)  # the only number of tokens and rank at which the kernel below is wrong


def product(x: Tensor, w_uv: Tensor) -> Tensor:
    """x @ w_uv in float32. [num_tokens, num_heads, v_head_dim]"""
    return torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)


def right(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Keeps every clause."""
    out.copy_(product(x, w_uv))


def rarely_wrong(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Leaves a corner of its problems unwritten."""
    if (x.shape[0], x.shape[2]) != RARE:
        right(x, w_uv, out)


def twice_wrong(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Breaks two clauses at many problems."""
    out[:-1].copy_(product(x, w_uv)[:-1])
    if x.shape[0] > 2 and x.numel():
        x[0, 0, 0] += 1


def kernel(function: Any) -> Kernel:
    """One name for all of them, as for one kernel that is being worked on."""
    limits = UpProjectionLimits(num_heads=(1, 2), kv_lora_rank=(1, 2, 5), v_head_dim=(1, 2), max_num_tokens=20)
    return Kernel(name="mine", contract="up-projection", load=lambda: function, limits=limits)


def run(function: Any, database: Any, *, examples: int = 100, seed: int = 0) -> Report:
    """Check a kernel in this process."""
    return check(kernel(function), examples=examples, seed=seed, database=database, isolation="none")


def primary(database: Any) -> int:
    """How many smallest failures a database remembers."""
    return len(set(database.fetch(b"up-projection mine")))


@pytest.fixture(scope="module")
def remembering() -> Any:
    """A database that has seen the rare failure, found by a long search."""
    database = InMemoryExampleDatabase()
    for seed in range(40):
        if run(rarely_wrong, database, examples=400, seed=seed).findings:
            return database
    raise AssertionError("the rare failure was not found at all")


def test_what_failed_before_is_tried_first(remembering: Any) -> None:
    """A failure that five examples would hardly find is back at once, whatever the seed."""
    for seed in (101, 102, 103):
        assert run(rarely_wrong, None, examples=5, seed=seed).findings == ()
        (finding,) = run(rarely_wrong, remembering, examples=5, seed=seed).findings
        assert finding.clause == "coverage"
        assert finding.problem.num_tokens == RARE[0]  # type: ignore[union-attr]


def test_what_no_longer_fails_is_forgotten(remembering: Any) -> None:
    """Once the kernel is mended the saved example goes."""
    copy = InMemoryExampleDatabase()
    for key, values in remembering.data.items():
        for value in values:
            copy.save(key, value)
    assert primary(copy) == 1
    assert run(right, copy, examples=5).findings == ()
    assert primary(copy) == 0


def test_the_search_for_other_clauses_forgets_nothing() -> None:
    """The later rounds of a check no longer report a clause that broke; its example stays all the same."""
    database = InMemoryExampleDatabase()
    first = run(twice_wrong, database, examples=120)
    broken = {finding.clause for finding in first.findings}
    assert {"coverage", "containment"} <= broken
    assert primary(database) >= len(broken)
    again = run(twice_wrong, database, examples=6, seed=99)
    assert {finding.clause for finding in again.findings} == broken
    assert primary(database) >= len(broken)


class Failing(InMemoryExampleDatabase):
    """A server that answers so many times and then no more."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.left = answers

    def save(self, key: bytes, value: bytes) -> None:
        """Count, then save."""
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("Connection closed by server.\nmore")
        super().save(key, value)


def test_a_server_that_is_lost_costs_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """The search goes on without it, and says so once."""
    found = run(twice_wrong, None, examples=60).findings
    report = run(twice_wrong, Losable(Failing(2), ConnectionError, "redis://host/0"), examples=60)
    assert [(one.clause, one.problem) for one in report.findings] == [(one.clause, one.problem) for one in found]
    said = "mla-verify: lost the database redis://host/0: Connection closed by server.; going on without it\n"
    assert capsys.readouterr().err == said


def test_a_kernel_of_another_name_has_memories_of_its_own(remembering: Any) -> None:
    """The key is the kernel and the contract, not the function that examines every one of them."""
    other = replace(kernel(rarely_wrong), name="another")
    report = check(other, examples=5, seed=101, database=remembering, isolation="none")
    assert report.findings == ()
    assert primary(remembering) == 1


def test_a_folder_remembers_from_run_to_run(tmp_path: Path) -> None:
    """Two databases opened at one folder are one."""
    assert run(twice_wrong, open_database(str(tmp_path / "db")), examples=60).findings
    (first, *_) = run(twice_wrong, open_database(str(tmp_path / "db")), examples=3, seed=5).findings
    assert first.found_after <= 2


def test_a_shared_database_is_read_and_never_written(tmp_path: Path) -> None:
    """Failures of others are tried; ours go to our own."""
    shared = tmp_path / "shared"
    run(twice_wrong, open_database(str(shared)), examples=60)
    before = {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    assert before
    both = open_database(str(tmp_path / "own"), shared=str(shared))
    assert run(right, both, examples=5).findings == ()
    assert run(twice_wrong, both, examples=3, seed=5).findings
    assert {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()} == before
    assert any((tmp_path / "own").rglob("*"))
    only_shared = open_database(None, shared=str(shared))
    assert run(twice_wrong, only_shared, examples=3, seed=6).findings


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Redis server, started for these tests."""
    pytest.importorskip("redis", reason="the package redis is not installed: pip install 'mla-verify[redis]'")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(20)


def test_a_redis_server_remembers_for_everybody(redis_url: str) -> None:
    """What one run saved on the server another run tries first, against a real server."""
    assert run(twice_wrong, open_database(redis_url), examples=60).findings
    (first, *_) = run(twice_wrong, open_database(redis_url), examples=3, seed=5).findings
    assert first.found_after <= 2
    shared = open_database(None, shared=redis_url)
    assert run(right, shared, examples=5).findings == ()
    assert run(twice_wrong, shared, examples=3, seed=6).findings


KERNEL: Final = """
import torch
def faulty(x, w_uv, out, **_):
    out[:-1].copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)[:-1])
"""


def test_workers_of_xdist_share_one_database(tmp_path: Path) -> None:
    """--mla-database under -n: every worker saves into the same folder, and a later run finds it there."""
    (tmp_path / "my.py").write_text(KERNEL)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "mla_verify.pytest_plugin"]
    command += ["--mla-kernel", "my.py:faulty", "--mla-contract", "up-projection", "--hypothesis-profile=dev"]
    command += ["--mla-shards", "2", "-n", "2", "--mla-database", "db"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed" in done.stdout
    assert any(path.is_file() for path in (tmp_path / "db").rglob("*"))


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("s3://bucket", "a database at s3:// is unknown"),
        ("redis://127.0.0.1:1/0", "cannot reach the database redis://127.0.0.1:1/0"),
        ("redis://me:secret@127.0.0.1:1/0", "cannot reach the database redis://127.0.0.1:1/0"),
        ("redis://127.0.0.1:port/0", "is no address of a Redis server"),
        (str(Path(__file__) / "below"), "cannot make the folder of the database"),
    ],
)
def test_a_database_that_cannot_be_opened_is_a_wrong_request(where: str, sentence: str) -> None:
    """One sentence before anything runs, without the password."""
    if where.startswith("redis"):
        pytest.importorskip("redis", reason="the package redis is not installed")
    with pytest.raises(UsageError, match=r"database|Redis") as caught:
        open_database(where)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
