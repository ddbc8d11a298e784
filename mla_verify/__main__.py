"""The command line: `mla-verify …`, or `python -m mla_verify …` from an uninstalled checkout."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a wrong request ends with one sentence on stderr and exit code 2."""
    from mla_verify.errors import Unavailable, UsageError
    from mla_verify.shadowing import refuse_foreign_packages

    try:
        refuse_foreign_packages()
        from mla_verify.cli import app

        app()
    except (UsageError, Unavailable) as error:
        print(f"mla-verify: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
