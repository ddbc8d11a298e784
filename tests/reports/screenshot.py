"""Takes the picture of the README: `python -m tests.reports.screenshot docs/images/report.png` from the root."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from mla_verify.check import check
from mla_verify.faults.corpus import kernel_named
from mla_verify.interpreting import interpret_on
from mla_verify.report import Report
from mla_verify.reports.folder import write_report
from mla_verify.reports.page import write_page
from mla_verify.reports.sources import place_of
from strategies.limits import UpProjectionLimits
from tests.reports.browser import missing, started

_EXAMPLES = 60
_LIMITS = UpProjectionLimits(num_heads=(2, 3), kv_lora_rank=(8,), v_head_dim=(40,), max_num_tokens=6)
_FAULTS = (
    "triton_mask_short_by_one",
    "up_projection_stride_gap_written",
    "up_projection_accumulates",
    "up_projection_last_term_dropped",
)


def reports() -> tuple[list[Report], list[Any]]:
    """A small run: four faults."""
    kernels = [replace(kernel_named(name), limits=_LIMITS) for name in _FAULTS]
    cases = Path("report") / "cases"
    found = [check(kernel, examples=_EXAMPLES, seed=0, isolation="none", cases=cases) for kernel in kernels]
    return found, [place_of(kernel) for kernel in kernels]


def main(picture: Path) -> int:
    """Write the picture; the exit code."""
    if missing():
        print(f"no browser: {', '.join(missing())} not installed", file=sys.stderr)
        return 3
    interpret_on("cpu")
    picture = picture.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the picture shows no path of this machine
        write_report(*reports(), Path("report"))
        page = write_page(Path("report")).resolve()
        browser = started(Path(folder) / "profile", size=(1280, 1180))
        try:
            browser.get(page.as_uri())
            browser.execute_script("document.querySelector('.finding').open = true")
            browser.execute_script("document.querySelector('.made').hidden = true")  # a path of this machine
            _point_at_the_first_map(browser)
            picture.parent.mkdir(parents=True, exist_ok=True)
            browser.save_screenshot(str(picture))
        finally:
            browser.quit()
    return 0


def _point_at_the_first_map(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    image = browser.find_element("css selector", ".finding[open] .view img")
    ActionChains(browser).move_to_element_with_offset(image, image.size["width"] // 2 - 4, 0).perform()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
