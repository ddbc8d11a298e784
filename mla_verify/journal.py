"""Turns problems into cases: a finding when it is known, and what is in flight before anything is launched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mla_verify.cases import Case, case_text, file_stem, make_folder, versions, write_whole
from mla_verify.contracts import contract_named
from mla_verify.kernel import Kernel
from mla_verify.report import ReportedFinding
from strategies.problems import Problem

__all__ = ["Journal", "case_of", "digests_of"]


def case_of(finding: ReportedFinding, kernel: Kernel, seed: int) -> Case:
    """The case of one finding: problem, digests of its values, and what it was found with."""
    return Case(
        contract=kernel.contract,
        kernel=kernel.target or kernel.name,
        clause=finding.clause,
        tensor=finding.tensor,
        detail=finding.detail,
        seed=seed,
        problem=finding.problem,
        after=finding.after,
        digests=digests_of(finding.problem, kernel),
        versions=versions(),
    )


def digests_of(problem: Problem, kernel: Kernel) -> dict[str, str]:
    """Input → SHA-256 of its values, row-major, in the dtype that the kernel sees: the same on every machine."""
    placement = contract_named(kernel.contract).place(problem, kernel, torch.device("cpu"))
    return {
        plan.name: hashlib.sha256(plan.values.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
        for plan in placement.tensors
        if plan.values is not None
    }


class Journal:
    """A case file that names the problem in flight, written before each launch and removed at the end.

    Whatever ends this process, the file is left behind whole: it can be replayed like any other case.
    """

    def __init__(self, folder: Path, kernel: Kernel, seed: int) -> None:
        make_folder(folder / "journal")
        self._kernel = kernel
        self._seed = seed
        self._path = folder / "journal" / f"{file_stem(kernel.target or kernel.name)}.{os.getpid()}.json"
        self._versions = versions()

    def __call__(self, problem: Any | None, after: Sequence[Any] = (), /) -> None:
        """Note the problem that is about to be launched, and those before it; None when nothing is any more."""
        if problem is None:
            self._path.unlink(missing_ok=True)
            return
        case = Case(
            contract=self._kernel.contract,
            kernel=self._kernel.target or self._kernel.name,
            clause="survival",
            tensor="",
            detail="in flight when the run ended",
            seed=self._seed,
            problem=problem,
            after=tuple(after),
            digests={},
            versions=self._versions,
        )
        write_whole(self._path, case_text(case), durable=False)
