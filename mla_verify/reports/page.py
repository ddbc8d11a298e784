"""`mla-verify report DIR`: one HTML page that needs nothing but itself.

Note [Size]: the page must open at once, however much was found. Facts come first: findings are written as long as they
fit, then pictures as long as they fit. What was left out is said on the page, and is in report.json.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from mla_verify.cases import write_whole
from mla_verify.errors import UsageError
from mla_verify.reports.folder import REPORT, mapping_of, read_report
from mla_verify.reports.page_facts import MANY, FindingFacts, KernelFacts, facts_of
from mla_verify.reports.page_maps import island, page_maps
from mla_verify.reports.page_tables import extra_tables
from sanitizer.finding import CLAUSES

__all__ = ["PAGE", "page_text", "write_page"]

PAGE: Final = "index.html"
_FACTS_BYTES: Final = 9_200_000  # of kernels and findings in words
_PAGE_BYTES: Final = 9_800_000  # of all, pictures included; 10 MB is what a page may have
_PICTURE_BYTES: Final = 4_000_000  # of pictures, where there are few findings
_FEWER_BYTES: Final = 500_000  # of pictures, where there are so many that they alone take a while to open
_TEMPLATES: Final = "templates"
_ROOM: Final = "mla_verify.reports"
_MAPS: Final = "<!-- maps -->"  # where a finding's pictures go; no text can say this, as every "<" is escaped


def write_page(folder: Path) -> Path:
    """Make `folder`/index.html of what lies in the folder; its path. Raises UsageError where that cannot be done."""
    path = folder / PAGE
    # A message may hold what UTF-8 has no way to say.
    write_whole(path, page_text(read_report(folder), folder).encode("utf-8", "replace").decode("utf-8"))
    return path


def page_text(data: Mapping[str, Any], folder: Path) -> str:
    """The page of a report. `folder` is where other tables may lie."""
    templates = _templates()
    kernels = facts_of(data)
    findings = [finding for kernel in kernels for finding in kernel.findings]
    about = [_tight(templates.get_template("kernel.html.j2").render(kernel=kernel)) for kernel in kernels]
    facts = [
        _tight(
            templates.get_template("finding.html.j2").render(finding=finding, maps=_MAPS, brief=len(findings) > MANY)
        )
        for finding in findings
    ]
    style, script = _asset("page.css"), _asset("page.js")
    tables = "".join(templates.get_template("table.html.j2").render(table=table) for table in extra_tables(folder))
    verdicts = _verdicts(kernels, findings, templates)
    about, used = _fitting(about, sum(map(_size, (style, script, tables, *verdicts))))
    facts, used = _fitting(facts, used)
    verdicts = _verdicts(kernels, findings[: len(facts)], templates)  # no link to a finding that did not fit
    facts, undrawn = _with_pictures(facts, findings, used, templates)
    return templates.get_template("page.html.j2").render(
        made=str(data.get("made", "")),
        command=str(data.get("command", "")),
        environment=sorted((name, str(value)) for name, value in mapping_of(data, "environment").items()),
        clauses=CLAUSES,
        verdicts=verdicts,
        totals=_totals(kernels),
        about=about,
        facts=facts,
        left_out=(len(kernels) - len(about), len(findings) - len(facts), undrawn),
        many=len(findings),
        tables=tables,
        report_name=REPORT,
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'",
    )


def _fitting(texts: list[str], used: int) -> tuple[list[str], int]:
    """As many of the texts as fit, and the bytes that are used then. See Note [Size]."""
    for place, text in enumerate(texts):
        used += _size(text)
        if used > _FACTS_BYTES:
            return texts[:place], used - _size(text)
    return texts, used


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _with_pictures(
    facts: Sequence[str], findings: Sequence[FindingFacts], used: int, templates: Any
) -> tuple[list[str], int]:
    """The findings with their maps, as long as those fit; and how many have to do without."""
    drawing = templates.get_template("maps.html.j2")
    most = min(_PAGE_BYTES, used + (_FEWER_BYTES if len(findings) > MANY else _PICTURE_BYTES))
    done: list[str] = []
    undrawn = 0
    for text, finding in zip(facts, findings, strict=False):
        drawn = ""
        if finding.maps and not undrawn:  # the first that does not fit is the last that is tried
            drawn = drawing.render(maps=page_maps(finding.maps, finding.tensor), island=island)
            if used + _size(drawn) > most:
                drawn = ""
        undrawn += bool(finding.maps) and not drawn
        used += _size(drawn)
        done.append(text.replace(_MAPS, drawn, 1))
    return done, undrawn


def _verdicts(kernels: Sequence[KernelFacts], findings: Sequence[FindingFacts], templates: Any) -> list[str]:
    """The rows of the table kernel × clause; a clause leads to its first finding."""
    firsts: dict[str, int] = {}
    for finding in findings:
        firsts.setdefault(f"{finding.kernel} {finding.clause}", finding.number)
    row = templates.get_template("verdicts.html.j2")
    return [_tight(row.render(kernel=kernel, firsts=firsts)) for kernel in kernels]


def _tight(html: str) -> str:
    """Markup without the line ends between elements: a browser makes a node of each. Texts have no "<" or ">"."""
    return html.replace(">\n<", "><")


def _totals(kernels: Sequence[KernelFacts]) -> list[tuple[str, int]]:
    """How many kernels have which verdict."""
    return sorted(Counter(kernel.verdict for kernel in kernels).items())


def _templates() -> Any:
    """The templates; every value that they are given is escaped."""
    try:
        import jinja2
    except ImportError as error:
        raise UsageError(
            "the page is made with jinja2, which is not installed: pip install 'mla-verify[report]'"
        ) from error
    return jinja2.Environment(
        loader=jinja2.PackageLoader(_ROOM, _TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (resources.files(_ROOM) / _TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a content security policy calls a script or a style: the page runs no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
