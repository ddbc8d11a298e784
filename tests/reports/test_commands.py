"""`--report`, `--sarif` and `mla-verify report`, as they are typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mla_verify.__main__ import main

_KERNEL = """
import torch

def tail(x, w_uv, out, **_):
    result = torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)
    out[..., :-1].copy_(result[..., :-1])
"""


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["mla-verify", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_report_is_kept_and_made_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """check --report keeps cases and maps; report makes the page; both say the line that replays."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(_KERNEL, encoding="utf-8")
    words = ("check", "mine.py:tail", "--contract", "up-projection", "--examples", "5", "--isolation", "none")
    assert typed(monkeypatch, *words, "--report", "out", "--sarif", "out.sarif") == 1
    (kernel,) = json.loads(Path("out/report.json").read_text(encoding="utf-8"))["kernels"]
    assert kernel["source"] == {"file": "mine.py", "line": 4}
    coverage = next(finding for finding in kernel["findings"] if finding["clause"] == "coverage")
    assert coverage["maps"]
    assert Path(coverage["case"]).parent == Path("out/cases")
    (result, *_) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "mine.py"
    capsys.readouterr()
    assert typed(monkeypatch, "report", "out") == 0
    assert capsys.readouterr().out == "out/index.html\n"
    assert f"mla-verify replay {coverage['case']} --kernel mine.py:tail" in Path("out/index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "nowhere"), "there is no folder nowhere"),
        (("report", "."), "holds no report.json"),
        (("check", "--all", "--report", "file"), "is a file; name a folder"),
    ],
)
def test_a_wrong_folder_is_one_sentence(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be read or written ends with exit code 2, before any kernel has run."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert typed(monkeypatch, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
