"""What the README shows is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from mla_verify.check import check
from mla_verify.registry import resolve
from strategies.problems import DecodeProblem

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_the_example_as_it_is() -> None:
    """The kernel in the README is the file that its command names."""
    source = (ROOT / "docs" / "examples" / "whole_pages.py").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() in source


def test_the_readme_shows_the_failure_that_is_found() -> None:
    """Clause, element and smallest problem are those of a run with the same seed."""
    report = check(resolve(str(ROOT / "docs/examples/whole_pages.py") + ":whole_pages"), examples=200, seed=0)
    (finding,) = report.findings
    assert f"{finding.clause}: {finding.detail}" in README
    assert f"smallest problem: {finding.problem_text}\n" in README
    assert finding.problem == DecodeProblem(page_size=2, with_lse=False)


def test_the_decode_of_the_guide_is_shown_as_it_is_and_right() -> None:
    """The guide's complete decode is the file that its command names, and it keeps the contract."""
    guide = (ROOT / "docs" / "adding-a-kernel.md").read_text(encoding="utf-8")
    path = ROOT / "docs" / "examples" / "my_decode.py"
    source = path.read_text(encoding="utf-8")
    assert source[source.index("import torch") :].strip() in guide
    assert check(resolve(f"{path}:my_decode", contract="decode"), examples=60, seed=0).verdict == "pass"


def test_every_file_that_the_readme_points_to_exists() -> None:
    """No link of the README leads nowhere."""
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
