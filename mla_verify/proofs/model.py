"""A kernel as a proof sees it: its sites, its grid and its layouts as terms, and what may be assumed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mla_verify.errors import UsageError
from mla_verify.proofs.declaring import Layout, Proof
from mla_verify.proofs.executing import Program, Site, execute
from mla_verify.proofs.expressions import Symbolic, tables_in
from mla_verify.proofs.lowering import Lowered
from mla_verify.proofs.parsing import Function, parse_ttir
from mla_verify.proofs.solving import Facts
from mla_verify.proofs.terms import (
    Formula,
    Monomial,
    Poly,
    Terms,
    all_of,
    at_least,
    atoms_in,
    equal,
    less,
)
from mla_verify.proofs.verdicts import OutOfClass

__all__ = ["Model", "Place", "Side", "build"]


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's layout as terms."""

    layout: Layout
    sizes: tuple[Poly, ...]
    strides: tuple[Monomial, ...]  # () for a stride of 1

    def index_of(self, site: Site) -> tuple[Poly, ...]:
        """The index that a site accesses: what each stride is multiplied by. Raises OutOfClass for another address."""
        rest, index = site.offset, []
        for stride in self.strides:
            part, rest = rest.divided(stride) if stride else (rest, Poly({}))
            index.append(part)
        if rest != Poly({}):
            raise OutOfClass(f"{site.base} at {rest}, which is no multiple of a declared stride", site.line)
        return tuple(index)


@dataclass(frozen=True, slots=True)
class Side:
    """One program of the launch, and one lane and turn of it: the site's own unknowns, or renamed ones."""

    index: tuple[Poly, ...]
    axes: tuple[Poly, ...]
    lanes: tuple[Poly, ...]
    trips: tuple[Poly, ...]
    active: Formula
    running: Formula  # that there is such a program


@dataclass(frozen=True, slots=True)
class Model:
    """One configuration of one declared kernel."""

    proof: Proof
    constants: dict[str, Any]
    terms: Terms
    function: Function
    names: tuple[str, ...]
    program: Program
    places: Mapping[str, Place]
    grid: tuple[Poly, Poly, Poly]

    def reader(self, **bound: Poly) -> Symbolic:
        """What reads this declaration's expressions."""
        return Symbolic(self.terms, self.constants, bound)

    def facts(self) -> Facts:
        """What the caller promises, the grid, and that sizes are not negative."""
        reader = self.reader()
        formulas = [reader.formula(text) for text in self.proof.preconditions]
        formulas += [at_least(size, 0) for place in self.places.values() for size in place.sizes]
        formulas += [
            equal(Poly.of(count), extent) for count, extent in zip(self.program.programs, self.grid, strict=True)
        ]
        return Facts(self.terms, self.constants, list(dict.fromkeys(formulas)), self.proof.each, self.proof.ragged)

    @property
    def running(self) -> Formula:
        """That there is a program with the unknown id."""
        return all_of(
            part
            for axis, count in zip(self.program.axes, self.program.programs, strict=True)
            for part in (at_least(Poly.of(axis), 0), less(Poly.of(axis), Poly.of(count)))
        )

    def live(self, layout: Layout, index: tuple[Poly, ...]) -> Formula:
        """That an index is one of the tensor's, and of its live part."""
        place = self.places[layout.tensor]
        box = [part for at, size in zip(index, place.sizes, strict=True) for part in (at_least(at, 0), less(at, size))]
        if layout.live:
            box.append(self.reader(**dict(zip(layout.names, index, strict=True))).formula(layout.live))
        return all_of(box)

    def side(self, site: Site, index: tuple[Poly, ...], *, other: bool) -> Side:
        """A site as it is, or in another program, lane and turn."""
        own = (*self.program.axes, *site.lanes, *site.trips)
        renamed = {
            atom: self.terms.atom(atom.kind, f"{atom.name}'", atom.args if atom.kind == "lane" else ()) for atom in own
        }
        change = self.terms.substitution(renamed if other else {}, mark="'" if other else "")
        return Side(
            index=tuple(change.poly(at) for at in index),
            axes=tuple(change.poly(Poly.of(axis)) for axis in self.program.axes),
            lanes=tuple(change.poly(Poly.of(lane)) for lane in site.lanes),
            trips=tuple(change.poly(Poly.of(trip)) for trip in site.trips),
            active=change.formula(site.active),
            running=change.formula(self.running),
        )

    def sites(self, tensor: str, *, stores: bool) -> list[Site]:
        """The stores to a tensor, or the loads from it."""
        return [site for site in self.program.sites if site.base == tensor and site.stores == stores]

    @property
    def tables(self) -> frozenset[str]:
        """Integer tables that promises speak of."""
        texts = [
            *(part.fact for part in self.proof.each),
            *(layout.live for layout in self.proof.layouts if layout.live),
        ]
        return frozenset(name for text in texts for name in tables_in(text)) | {
            part.table for part in self.proof.ragged
        }


def build(
    proof: Proof, constants: Mapping[str, Any], lowered: Lowered, terms: Terms | None = None, *, tag: str = ""
) -> Model:
    """Execute a kernel and read its declaration. Raises OutOfClass, UsageError."""
    if lowered.error:
        raise OutOfClass(lowered.error, "")
    terms = terms or Terms()
    function = parse_ttir(lowered.text)
    program = execute(function, lowered.names, terms, tag=tag)
    _refuse_stored_tables(program)
    reader = Symbolic(terms, constants)
    places: dict[str, Place] = {}
    for layout in proof.layouts:
        if layout.tensor not in proof.pointers:
            raise UsageError(
                f"{proof.name}: {layout.tensor} has a layout but is no pointer of the kernel; name it in pointers"
            )
        if len(layout.sizes) != len(layout.strides):
            raise UsageError(
                f"{proof.name}: {layout.tensor} has {len(layout.sizes)} sizes and {len(layout.strides)} strides, "
                "wanted as many of one as of the other"
            )
        places[layout.tensor] = Place(
            layout,
            tuple(reader.poly(size) for size in layout.sizes),
            tuple(_monomial(reader.poly(stride), stride, proof) for stride in layout.strides),
        )
    extents = [reader.poly(extent) for extent in proof.grid]
    if not 1 <= len(extents) <= 3:
        raise UsageError(f"{proof.name}: a grid has one to three axes, got {len(extents)}")
    extents += [Poly.number(1)] * (3 - len(extents))
    return Model(
        proof, dict(constants), terms, function, lowered.names, program, places, (extents[0], extents[1], extents[2])
    )


def _refuse_stored_tables(program: Program) -> None:
    """A table that decides an address is the same all the time: one that is stored to as well is out of class."""
    stores = {site.base: site for site in program.sites if site.stores}
    for site in program.sites:
        for atom in atoms_in(site.offset, site.mask, site.path):
            if atom.kind == "load" and atom.name in stores:
                raise OutOfClass(f"addresses rest on {atom.name}, which is stored to", stores[atom.name].line)


def _monomial(poly: Poly, text: str, proof: Proof) -> Monomial:
    if len(poly.terms) == 1:
        monomial, factor = poly.terms[0]
        if factor == 1:
            return monomial
    raise UsageError(f"{proof.name}: the stride {text!r} is no product of parameters; write it as one, or '1'")
