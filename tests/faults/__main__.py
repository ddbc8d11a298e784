"""Print, for every seeded fault and seed, the clause it was found under and the problem it was shrunk to.

    python -m tests.faults [--seeds 5] [--examples 200] [NAME …]

Exit code 1 where a fault was missed or a right kernel accused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from mla_verify.check import check
from tests.faults import decode, up_projection
from tests.faults.fault import Fault, kernel_of
from tests.faults.right import RIGHT


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, check everything that was named, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Which seeded fault is found how.")
    parser.add_argument("names", nargs="*", help="parts of names; everything where there are none")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 up to this one")
    parser.add_argument("--examples", type=int, default=200)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    def wanted(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    missed = 0
    for fault in (*up_projection.FAULTS, *decode.FAULTS):
        if wanted(fault.name):
            print(f"{fault.name}: {fault.what}")
            missed += sum(not _found(fault, seed, options.examples) for seed in range(options.seeds))
    for kernel in RIGHT:
        if wanted(kernel.name):
            for seed in range(options.seeds):
                report = check(kernel, examples=options.examples, seed=seed)
                accused = "; ".join(f"{f.clause}: {f.detail} [{f.problem_text}]" for f in report.findings)
                print(f"{kernel.name}  seed {seed}  {accused or 'right'}  {report.seconds:.1f} s", flush=True)
                missed += bool(accused)
    return 1 if missed else 0


def _found(fault: Fault, seed: int, examples: int) -> bool:
    """Check one fault with one seed, print a line for each finding, say whether its clause is among them."""
    report = check(kernel_of(fault), examples=examples, seed=seed)
    for finding in report.findings:
        mark = "*" if finding.clause in fault.clauses else " "
        where = f"after {finding.found_after:3}: {finding.problem_text or 'all defaults'}"
        print(f"  {mark} seed {seed}  {finding.clause:13} {where}", flush=True)
    found = any(finding.clause in fault.clauses for finding in report.findings)
    if not found:
        print(f"  ! seed {seed}  MISSED  {report.seconds:.1f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
