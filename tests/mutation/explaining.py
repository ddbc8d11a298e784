"""What docs/mutation.md says about survivors, and whether it is still so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from tests.mutation.mutants import Mutant

__all__ = ["Fate", "Verdict", "explained", "fate_of", "verdict"]

Fate = Literal["killed", "timeout", "survived", "no tests"]

_ROW: Final = re.compile(r"^\| `([0-9a-f]{10})` \|", re.MULTILINE)
_NO_TESTS: Final = {5, 33}
_OUT_OF_TIME: Final = {-24, 24, 152, -9}  # SIGXCPU in its several spellings, and the SIGKILL that follows


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands between a run and exit code 0."""

    unexplained: tuple[Mutant, ...]  # survived, and the document does not say why
    killed_after_all: tuple[str, ...]  # keys that the document explains although a test kills them
    gone: tuple[str, ...]  # keys that the document explains although the code has no such mutant any more

    @property
    def good(self) -> bool:
        """Whether every survivor is explained, and nothing else is."""
        return not (self.unexplained or self.killed_after_all or self.gone)


def explained(document: str) -> list[str]:
    """The keys of the survivors that the document explains."""
    return _ROW.findall(document)


def fate_of(exit_code: int) -> Fate:
    """What became of a mutant whose tests ended with this exit code; any death but a timeout's is a kill."""
    if exit_code in _NO_TESTS:
        return "no tests"
    if exit_code in _OUT_OF_TIME:
        return "timeout"
    return "survived" if exit_code == 0 else "killed"


def verdict(fates: Mapping[Mutant, Fate], keys: Iterable[str], *, existing: Set[str]) -> Verdict:
    """Compare the fates of the mutants that were run with the `keys` explained and all that `existing` ones have."""
    keys = sorted(set(keys))
    alive = {mutant.key: mutant for mutant, fate in fates.items() if fate in ("survived", "no tests")}
    run = {mutant.key for mutant in fates}
    return Verdict(
        tuple(mutant for key, mutant in alive.items() if key not in keys),
        tuple(key for key in keys if key in run and key not in alive),
        tuple(key for key in keys if key not in existing),
    )
