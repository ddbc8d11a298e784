"""What `--json` prints is what docs/contract.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mla_verify.report import unavailable_report

_CONTRACT: Final = Path(__file__).parents[1] / "docs" / "contract.md"


def test_the_documentation_lists_every_field_and_no_other() -> None:
    """A field that comes or goes is documented, in the order in which it is printed."""
    (listed,) = re.findall(r"one array with an object per kernel: (.*?)\.\n", _CONTRACT.read_text(), re.DOTALL)
    printed = unavailable_report(kernel="k", contract="decode", device="cpu", reason="absent").to_json()
    assert re.findall(r"`(\w+)`", listed) == list(printed)
