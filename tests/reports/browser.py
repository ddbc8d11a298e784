"""Chromium without a window, driven from Python; says why where it cannot be."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any, Final

__all__ = ["missing", "started"]

# Nothing may leave the machine, and nothing may be asked of whoever runs the tests.
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def missing() -> list[str]:
    """What a browser needs and this machine lacks."""
    wanted = {
        "chromium": shutil.which("chromium"),
        "chromedriver (Debian's chromium-driver)": shutil.which("chromedriver"),
        "selenium": importlib.util.find_spec("selenium"),
    }
    return [name for name, there in wanted.items() if not there]


def started(profile: Path, *, size: tuple[int, int] = (1300, 1000)) -> Any:
    """A browser with an empty profile that keeps what it says and what it asks for; `quit` it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
