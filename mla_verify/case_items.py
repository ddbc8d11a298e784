"""Saved cases as pytest items: each fails while its kernel still does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mla_verify.cases import Case, case_files, load_case
from mla_verify.devices import device_of_worker
from mla_verify.errors import UsageError
from mla_verify.isolation import Isolation
from mla_verify.kernel import Kernel
from mla_verify.registry import registered
from mla_verify.replaying import Replayed, Replayer, is_case_of

__all__ = ["CaseItem", "case_items"]


def case_items(
    session: pytest.Session, folder: Path, kernels: Sequence[Kernel], *, device: str, isolation: Isolation
) -> list[CaseItem]:
    """One item per case in `folder`, by name; none where there is no such folder yet."""
    return [
        CaseItem.from_parent(
            session,
            name=path.stem,
            nodeid=f"mla-verify::cases::{path.stem}",
            case_path=path,
            kernels=kernels,
            device=device,
            isolation=isolation,
        )
        for path in (case_files([folder]) if folder.exists() else ())
    ]


class CaseItem(pytest.Item):
    """One saved case. It fails while the kernel still does, is skipped where the kernel cannot be run, and says why."""

    def __init__(
        self, *, case_path: Path, kernels: Sequence[Kernel], device: str, isolation: Isolation, **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.case_path = case_path
        self.kernels = kernels
        self.device = device
        self.isolation: Isolation = isolation

    def runtest(self) -> None:
        """Run the case on the kernel that it was found with."""
        try:
            case = load_case(self.case_path)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        kernel = self._kernel_of(case)
        if kernel is None:
            pytest.skip(f"found with {case.kernel[:200]!r}, which is not registered and was not named by --mla-kernel")
        replayer = Replayer(
            device=device_of_worker(self.device, os.environ.get("PYTEST_XDIST_WORKER")), isolation=self.isolation
        )
        try:
            shown = replayer(self.case_path, case, kernel)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        finally:
            replayer.close()
        if shown.outcome == "cannot run here":
            pytest.skip(f"cannot run here: {shown.detail}")
        self.add_report_section("call", "mla-verify", _text_of(shown, kernel))
        if shown.outcome == "still fails":
            pytest.fail(_text_of(shown, kernel), pytrace=False)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """What pytest prints as the place of this item."""
        return self.case_path, None, f"case {self.case_path.name}"

    def _kernel_of(self, case: Case) -> Kernel | None:
        """One that the command line names, else one that is registered; a case itself loads nothing."""
        return next((kernel for kernel in (*self.kernels, *registered()) if is_case_of(case, kernel)), None)


def _text_of(shown: Replayed, kernel: Kernel) -> str:
    from mla_verify.table import replay_line

    return "\n".join(
        (
            f"{shown.outcome}: {shown.detail} [{shown.kernel}]",
            f"problem: {shown.problem_text}",
            f"replay: {replay_line(str(shown.path), kernel.target)}",
        )
    )
