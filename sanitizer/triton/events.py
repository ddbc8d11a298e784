"""What a recorder saw that a right kernel does not do, counted by kernel and tensor, and put into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from sanitizer.finding import Finding

__all__ = ["Event", "Events", "Kind", "Program", "joined", "program_text"]

Program = tuple[int, int, int]
Kind = Literal["secret", "stray", "load nowhere", "store nowhere", "race", "unordered", "twice", "assumption"]

_SHOWN: Final = 3  # programs that are named; the rest are counted

# What one or several programs do to n elements at a place.
_WORDS: Final[dict[str, str]] = {
    "secret": "{load} {n} of {tensor} that hold no input and that nothing was stored to before, from {place} on",
    "stray": "{store} {n} outside the outputs, from {place} on",
    "load nowhere": "{load} {n} from memory that belongs to no tensor, the nearest {place}",
    "store nowhere": "{store} {n} to memory that belongs to no tensor, the nearest {place}",
    "race": "{store} other values than {others} did in the same launch to {n}, from {place} on",
    "unordered": "{load} {n} that {others} stored in the same launch, with no atomic between, from {place} on",
    "twice": "{store} what {others} had stored already in the same launch to {n}, from {place} on",
    "assumption": "{assume} what does not hold (tl.assume): compiled code may do anything then",
}
# The clause that an event breaks by itself: no secret can show it on a machine that runs one program at a time, or
# the access was kept from happening.
_CLAUSE: Final[dict[str, str]] = {
    "race": "repeatability",
    "unordered": "repeatability",
    "load nowhere": "survival",
    "store nowhere": "containment",
    # The kernel takes for granted what a valid problem does not grant: it should have refused it.
    "assumption": "refusal",
}
# The events that explain a finding of a clause; those of "containment" have to be at the same tensor.
_EXPLAINS: Final[dict[str, tuple[str, ...]]] = {
    "independence": ("secret", "load nowhere"),
    "containment": ("stray", "store nowhere"),
    "repeatability": ("race", "unordered", "secret"),
}


@dataclass(slots=True, eq=False)
class Event:
    """One kind of access by one jitted function to one tensor, over all programs of the run that first showed it."""

    kind: Kind
    kernel: str
    tensor: str
    place: str
    run: int
    elements: int = 0
    programs: dict[Program, None] = field(default_factory=dict[Program, None])
    others: dict[Program, None] = field(default_factory=dict[Program, None])

    @property
    def words(self) -> str:
        """The event as a sentence that names kernel and programs."""
        count = f"{self.elements} element{'s' if self.elements > 1 else ''}"
        s = "" if len(self.programs) > 1 else "s"
        said = _WORDS[self.kind].format(
            n=count,
            tensor=self.tensor,
            place=self.place,
            others=program_text(self.others),
            load=f"load{s}",
            store=f"store{s}",
            assume=f"assume{s}",
        )
        return f"{self.kernel} {program_text(self.programs)} {said}"

    @property
    def note(self) -> str:
        """The same for a report: what stands before the colon is alike for every problem."""
        what = {
            "secret": f"loads memory of {self.tensor} that is no input, without effect",
            "stray": f"stores to {self.tensor} outside the outputs, without effect",
            "twice": f"stores elements of {self.tensor} from several programs, the same values",
        }.get(self.kind, self.kind)
        return f"{self.kernel} {what}: {self.words}"


class Events:
    """All events of one audit."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], Event] = {}

    def add(
        self,
        kind: Kind,
        *,
        kernel: str,
        tensor: str,
        place: str,
        elements: int,
        program: Program,
        run: int,
        others: Iterable[Program] = (),
    ) -> None:
        """Count one access. Its place is told by the first of its kind; later runs only repeat it."""
        key = (kind, kernel, tensor)
        event = self._seen.get(key)
        if event is None:
            event = self._seen[key] = Event(kind, kernel, tensor, place, run)
        if event.run != run:
            return
        event.elements += elements
        event.programs[program] = None
        event.others.update(dict.fromkeys(others))

    def has(self, kind: Kind, kernel: str, tensor: str) -> bool:
        """Whether there is such an event already."""
        return (kind, kernel, tensor) in self._seen

    def all(self) -> list[Event]:
        """In the order in which they were first seen."""
        return list(self._seen.values())


def program_text(programs: Iterable[Program]) -> str:
    """A few program ids, the rest as a number."""
    ids = list(programs)
    shown = ", ".join(f"({x}, {y}, {z})" for x, y, z in ids[:_SHOWN])
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f"program{'s' if len(ids) > 1 else ''} {shown}{more}"


def joined(
    findings: Sequence[Finding], events: Sequence[Event], *, neighbours: dict[str, str]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings with the events that explain them, findings that events are by themselves, and the rest as notes.

    neighbours: per output, what is known about who stored beside the elements that nobody stored.
    """
    used: set[int] = set()
    told: list[Finding] = []
    for finding in findings:
        explaining = [
            event
            for event in events
            if event.kind in _EXPLAINS.get(finding.clause, ())
            and (finding.clause != "containment" or _same_tensor(event, finding))
        ]
        used.update(id(event) for event in explaining)
        words = [event.words for event in explaining[:_SHOWN]]
        if finding.clause == "coverage" and finding.tensor in neighbours:
            words = [neighbours[finding.tensor]]
        told.append(replace(finding, detail="; ".join((finding.detail, *words))))
    for event in events:
        clause = _CLAUSE.get(event.kind)
        if clause is None or (id(event) in used and any(finding.clause == clause for finding in findings)):
            continue
        used.add(id(event))
        told.append(Finding(clause, event.tensor, event.elements, event.words))
    return tuple(told), tuple(event.note for event in events if id(event) not in used)


def _same_tensor(event: Event, finding: Finding) -> bool:
    # A scratch is "scratch 3" in findings and "scratch 3 (torch.empty …)" here.
    return event.tensor == finding.tensor or event.tensor.startswith(f"{finding.tensor} (")
