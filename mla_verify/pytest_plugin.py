"""The pytest plugin: `--mla-kernel TARGET` turns a kernel into test items, from any directory and under xdist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from mla_verify.shadowing import refuse_foreign_packages

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from mla_verify.kernel import Kernel
    from mla_verify.report import Report

__all__ = ["KernelCollector", "KernelItem"]

# Examples per item under each Hypothesis profile. `ci` draws the same problems every time.
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "dev": {"max_examples": 50},
    "ci": {"max_examples": 200, "derandomize": True},
    "deep": {"max_examples": 2_000},
}
_DATABASE: Final[pytest.StashKey[ExampleDatabase | None]] = pytest.StashKey()
_OWN_OPTIONS: Final = ("mla_kernels", "mla_cases")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options, in a group of their own."""
    group = parser.getgroup("mla-verify", "verification of MLA kernels")
    group.addoption(
        "--mla-kernel",
        dest="mla_kernels",
        action="append",
        default=[],
        metavar="TARGET",
        help="check this kernel: a registered name, module:callable or file.py:callable (may be given again)",
    )
    group.addoption(
        "--mla-contract", dest="mla_contract", metavar="NAME", help="the contract of a kernel that is not registered"
    )
    group.addoption("--mla-device", dest="mla_device", default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N")
    group.addoption(
        "--mla-isolation",
        dest="mla_isolation",
        default="process",
        metavar="WHERE",
        help="process: run kernels in a worker that they may take down; none: here, as for a debugger",
    )
    group.addoption(
        "--mla-shards", dest="mla_shards", type=int, default=4, metavar="N", help="items per kernel (for -n)"
    )
    group.addoption("--mla-seed", dest="mla_seed", type=int, default=None, metavar="SEED", help="the first item's seed")
    group.addoption(
        "--mla-cases",
        dest="mla_cases",
        metavar="DIR",
        help="run the saved cases in this folder before anything is fuzzed, and save new failures there",
    )
    group.addoption(
        "--mla-database",
        dest="mla_database",
        metavar="DIR|URL",
        help="a folder or redis://…: failures of earlier runs are tried first",
    )
    group.addoption(
        "--mla-shared-database",
        dest="mla_shared_database",
        metavar="DIR|URL",
        help="one more database, which is read and never written",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks up --hypothesis-profile
def pytest_configure(config: pytest.Config) -> None:
    """Register the profiles and check the request, only where one of our options is used."""
    config.addinivalue_line("markers", "gpu: needs a GPU; skipped, with the reason, where there is none")
    if not _in_use(config):
        return
    from hypothesis import settings

    from mla_verify.databases import open_database
    from mla_verify.errors import UsageError
    from mla_verify.isolation import isolation_named

    for name, values in PROFILES.items():
        settings.register_profile(name, deadline=None, **values)
    if _option(config, "mla_shards") < 1:
        raise pytest.UsageError(f"--mla-shards must be at least 1, got {config.getoption('mla_shards')}")
    try:
        refuse_foreign_packages()
        isolation_named(_option(config, "mla_isolation"))
        config.stash[_DATABASE] = open_database(
            _option(config, "mla_database"), shared=_option(config, "mla_shared_database")
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the folder's own tests alone when a kernel was asked for and no test path was named."""
    if _in_use(config) and config.args_source is not config.ArgsSource.ARGS:
        return True
    return None


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the saved cases, then the kernels' items, behind whatever else was collected."""
    if not _in_use(config):
        return
    fuzzing: list[KernelItem] = []
    for target in _option(config, "mla_kernels"):
        collector = KernelCollector.from_parent(session, name=target, nodeid=f"mla-verify::{target}")
        fuzzing.extend(collector.collect())
    folder = _cases(config)
    if folder is not None:
        from mla_verify.case_items import case_items

        kernels = list({item.kernel.target: item.kernel for item in fuzzing}.values())
        device, isolation = _option(config, "mla_device"), _option(config, "mla_isolation")
        items.extend(case_items(session, folder, kernels, device=device, isolation=isolation))
    items.extend(fuzzing)


def _option(config: pytest.Config, name: str) -> Any:
    """The value of one of our options; pytest types them all as optional."""
    return config.getoption(name)


def _cases(config: pytest.Config) -> Path | None:
    """The folder of saved cases, as seen from where pytest was started."""
    asked: str | None = _option(config, "mla_cases")
    return None if asked is None else config.invocation_params.dir / asked


def _in_use(config: pytest.Config) -> bool:
    return any(config.getoption(option, None) for option in _OWN_OPTIONS)


class KernelCollector(pytest.Collector):
    """One kernel as a collection of items, each a share of the search with a seed of its own."""

    def collect(self) -> Iterator[KernelItem]:
        """One item per shard; ids depend on the command line alone, so that xdist's workers agree."""
        from mla_verify.devices import resolve_device
        from mla_verify.errors import Unavailable, UsageError
        from mla_verify.interpreting import interpret_on
        from mla_verify.registry import resolve

        interpret_on(_option(self.config, "mla_device"))
        try:
            kernel = resolve(self.name, contract=_option(self.config, "mla_contract"))
            resolve_device(_option(self.config, "mla_device"))
        except (UsageError, Unavailable) as error:
            raise pytest.UsageError(str(error)) from error
        shards: int = _option(self.config, "mla_shards")
        for shard in range(shards):
            yield KernelItem.from_parent(self, name=f"shard-{shard}", kernel=kernel, shard=shard)


class KernelItem(pytest.Item):
    """A share of one kernel's check; fails with the findings at their smallest problems."""

    def __init__(self, *, kernel: Kernel, shard: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.kernel = kernel
        self.shard = shard
        self.report: Report | None = None

    def runtest(self) -> None:
        """Check the kernel with this shard's seed and the active profile's number of examples."""
        from hypothesis import settings

        from mla_verify.budget import sharing
        from mla_verify.check import check
        from mla_verify.devices import device_of_worker, resolve_device

        profile = settings()
        name: str = _option(self.config, "mla_device")
        device = device_of_worker(name, os.environ.get("PYTEST_XDIST_WORKER"))
        count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        seed = _first_seed(self.config, derandomized=profile.derandomize)
        report = check(
            self.kernel,
            examples=profile.max_examples,
            seed=seed + self.shard,
            device=device,
            workers=sharing(name, resolve_device(device), workers=count),
            isolation=_option(self.config, "mla_isolation"),
            cases=_cases(self.config),
            database=self.config.stash[_DATABASE],
        )
        if report.verdict == "unavailable":
            pytest.skip(f"{self.kernel.name} is unavailable: {report.unavailable}")
        self.report = report
        if report.verdict == "fail":
            raise KernelFailed(report)
        self.add_report_section("call", "mla-verify", _text_of(report))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings in place of a traceback through our own machinery."""
        if isinstance(excinfo.value, KernelFailed):
            report = excinfo.value.report
            broken = ", ".join(finding.clause for finding in report.findings) or "a stale known deviation"
            return f"{report.kernel} breaks {broken}\n\n{_text_of(report)}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """What pytest prints as the place of this item."""
        return self.path, None, f"{self.kernel.name} shard {self.shard}"


class KernelFailed(Exception):
    """A kernel's check failed; carries the report."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.kernel)
        self.report = report


def _first_seed(config: pytest.Config, *, derandomized: bool) -> int:
    """The seed of shard 0: as asked, 0 where the profile is derandomised, else the run's own."""
    asked: int | None = _option(config, "mla_seed")
    if asked is not None:
        return asked
    return 0 if derandomized else _run_seed(config)


def _run_seed(config: pytest.Config) -> int:
    """A number that differs from run to run and is the same in every xdist worker of one run."""
    import zlib

    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    return zlib.crc32(run_id.encode()) % 1_000_000_000


def _text_of(report: Report) -> str:
    from io import StringIO

    from rich.console import Console

    from mla_verify.table import print_reports

    stream = StringIO()
    print_reports([report], to=Console(file=stream, width=150, highlight=False))
    return stream.getvalue().rstrip()


def pytest_report_header(config: pytest.Config) -> Iterable[str]:
    """Name the kernels and the device in the header."""
    if not _in_use(config):
        return []
    kernels = ", ".join(_option(config, "mla_kernels")) or "saved cases"
    return [f"mla-verify: {kernels} on {config.getoption('mla_device')}"]
