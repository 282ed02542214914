"""Compact forms of per-example gradients: what a layer rule returns.

A form stands for the gradients g_1 .. g_B of a batch with respect to one or more parameters, usually without
holding them. It can give bounds on the norms |g_i| and a weighted sum of the g_i, which is all a step needs.

**What is bounded, and what is summed.** g_i is a real vector: the one that is held, or the one that is defined by
numbers that are held (inputs a_t and output gradients d_t at the places t of example i: g_i = sum_t d_t a_t^T). With u
the unit roundoff and eta the smallest normal number of the type, one operation on numbers x, y errs by at most
u |x y| + eta or u |x + y| + eta, whether numbers below eta are kept or flushed to zero. Sums of n products, in any
order, therefore err by at most (n + 2) u (1 + 2^-4) of the sum of their magnitudes and by 2 n eta, for n up to 2^19
(Higham 2002, section 3.1). Every bound of this module follows from these two sentences, for numbers of any size:
squares that overflow make a norm infinite, and the example counts as zero; squares that underflow are covered by eta.

It is assumed that the numbers of one example do not depend on the rest of the batch. `inosgd.gradients.invariance`
checks that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from inosgd.gradients.rules import sums
from inosgd.gradients.rules.sums import (
    Operand,
    example_sums,
    lookup_sum,
    outer_sums,
    row_sum,
    squared_pixels,
    squared_rows,
)

CHUNK_ELEMENTS = 1 << 22
"""How many numbers of materialised gradients are held at once where they are needed only for their norms."""

_SQUARED_AT_ONCE = 256
"""How many squares torch adds up in the type of the model; sums of more go on in float64."""

Rows = torch.Tensor | slice
"""Some examples of a batch: their indices, or a slice, which copies nothing."""


class Bounds(NamedTuple):
    """What is not exceeded, squared, one float64 number per example.

    Attributes:
        norms: At least |g_i|^2.
        magnitudes: At least m_i^2, m_i being the sum of the norms of all that a weighted sum adds up for example i: the
            norm itself for gradients that are held, more where contributions of an example may cancel.
    """

    norms: torch.Tensor
    magnitudes: torch.Tensor


class Form(Protocol):
    """The gradients of all examples of a batch with respect to some parameters."""

    def bounds(self) -> Bounds:
        """Bounds on every example's gradient over all parameters of the form."""

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """sum_i coefficients[i] g_i, one float64 tensor per parameter, within the bounds of `sums`.

        Args:
            coefficients: One float64 number per example.
            single: Whether products may be computed and a few of them added up in the type of the gradients.
        """

    def materialise(self) -> Sequence[torch.Tensor]:
        """The gradients themselves, one tensor per parameter with the examples in its first dimension."""

    # A form may have sum_into(targets, coefficients, *, single) beside weighted_sum, which writes where sums belong.

    def select(self, rows: Rows) -> Form:
        """The same for the examples in ``rows`` alone."""


def folded(form: Form, places: int, count: int) -> Form:
    """The gradients of examples that are several rows each, from a form with a gradient for every row.

    Example i is the rows i ``places`` .. (i + 1) ``places`` - 1, and its gradient is the sum of theirs. For forms that
    know no better way the rows are like uses of one parameter, of which every example has as many.

    Args:
        form: The gradients of the rows.
        places: How many rows an example has.
        count: How many examples there are.
    """
    if places == 1:
        return form
    if hasattr(form, "folded"):  # it knows a better way
        better: Form = form.folded(places)
        return better
    if isinstance(form, Blocks):
        return Blocks(tuple(folded(block, places, count) for block in form.forms))
    return Summed(tuple(form.select(slice(place, None, places)) for place in range(places)), count)


@dataclass(frozen=True, eq=False)
class Dense:
    """Gradients that are held as they are: one tensor per parameter, first dimension the examples."""

    gradients: tuple[torch.Tensor, ...]

    def bounds(self) -> Bounds:
        """|g_i|^2, entry by entry; there is one summand per example."""
        return held_bounds(self.gradients)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """Scaled rows, added up."""
        return [sum_rows(gradient, coefficients, single) for gradient in self.gradients]

    def materialise(self) -> Sequence[torch.Tensor]:
        """What is held."""
        return self.gradients

    def select(self, rows: Rows) -> Dense:
        """Some rows of what is held."""
        return Dense(tuple(gradient[rows] for gradient in self.gradients))

    def folded(self, places: int) -> Dense:
        """Sums of rows: they are what is held from here on."""
        return Dense(tuple(apart(gradient, places).sum(1) for gradient in self.gradients))


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """Gradients of weights and biases of an affine map applied at T places of every example.

    With output gradients d_t and inputs a_t at the places t, the map's weight has the gradient sum_t d_t a_t^T
    and its bias sum_t d_t. Several weights may share the d_t (a recurrent cell: input and hidden state), and so
    may several biases. With the Gram matrices D = d d^T and K = sum over weights of a a^T, both T x T,

        |g|^2 = sum_{s,t} D_st (K_st + number of biases),

    and for a single place |d|^2 (|a|^2 + number of biases).

    Attributes:
        outputs: d, of shape (examples, outputs) or (examples, places, outputs).
        inputs: One a per weight, of matching shape (examples, [places,] inputs).
        biases: How many biases there are.
    """

    outputs: torch.Tensor
    inputs: tuple[torch.Tensor, ...]
    biases: int = 0

    def bounds(self) -> Bounds:
        """By the formulas above, rounded up; m = sum_t |d_t| |(a_t, 1)|."""
        if self.outputs.dim() == 2:
            norms = squares(self.outputs) * sum_tensors([squares(each) for each in self.inputs], self.biases)
            return Bounds(norms, norms)
        by_kernel = sums.pair_bounds(self.outputs, self.inputs, self.biases)
        if by_kernel is not None:
            return Bounds(*by_kernel)
        gram = sum_tensors([each @ each.mT for each in self.inputs], self.biases)
        terms = self.outputs.shape[2], sum(each.shape[2] for each in self.inputs) + self.biases
        return pair_bounds(self.outputs @ self.outputs.mT, gram, *terms)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """sum_i c_i sum_t d_t a_t^T over the places of all examples, read where they are."""
        found = self._sums(coefficients, single, None)
        return [*found, *found[-1:] * (self.biases - 1)] if self.biases else found

    def sum_into(self, targets: Sequence[torch.Tensor], coefficients: torch.Tensor, *, single: bool) -> None:
        """The same, into contiguous float64 tensors of the shapes of the parameters."""
        self._sums(coefficients, single, targets[: len(self.inputs) + (self.biases > 0)])
        for other in targets[len(self.inputs) + 1 :]:
            other.copy_(targets[len(self.inputs)])

    def _sums(
        self, coefficients: torch.Tensor, single: bool, into: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        places = self.outputs.shape[1] if self.outputs.dim() == 3 else 1
        scales, inputs = coefficients.repeat_interleave(places), [Operand.of(each) for each in self.inputs]
        return outer_sums(Operand.of(self.outputs), inputs, scales, biased=self.biases > 0, single=single, into=into)

    def materialise(self) -> Sequence[torch.Tensor]:
        """sum_t d_t a_t^T for every example."""
        outputs = self._sequence(self.outputs)
        operands = [Operand.of(self._sequence(each)) for each in self.inputs]
        found = example_sums(Operand.of(outputs), operands, len(outputs), biased=self.biases > 0) if operands else None
        if found is not None:
            return [*found, *found[-1:] * (self.biases - 1)] if self.biases else found
        weights = [outputs.mT @ self._sequence(each) for each in self.inputs]
        return [*weights, *[outputs.sum(1)] * self.biases]

    def select(self, rows: Rows) -> OuterProducts:
        """Outputs and inputs of some examples."""
        return OuterProducts(self.outputs[rows], tuple(each[rows] for each in self.inputs), self.biases)

    def folded(self, places: int) -> Form:
        """The places of all rows of an example are its places."""
        form = self.with_rows_together(places)
        return affine(form.outputs, form.inputs, self.biases)

    def with_rows_together(self, places: int) -> OuterProducts:
        """The same, whatever its size."""
        inputs = tuple([_together(each, places) for each in self.inputs])
        return OuterProducts(_together(self.outputs, places), inputs, self.biases)

    def joined(self, others: Sequence[OuterProducts]) -> OuterProducts:
        """One map applied at the places of all of them."""
        forms = [self, *others]
        outputs = torch.cat([self._sequence(form.outputs) for form in forms], dim=1)
        columns = zip(*[form.inputs for form in forms], strict=True)
        inputs = [torch.cat([self._sequence(each) for each in column], dim=1) for column in columns]
        return OuterProducts(outputs, tuple(inputs), self.biases)

    @staticmethod
    def _sequence(values: torch.Tensor) -> torch.Tensor:
        return values.unsqueeze(1) if values.dim() == 2 else values


@dataclass(frozen=True, eq=False)
class Lookups:
    """Gradients of an embedding table: d_t is added to the row that place t looked up.

    |g|^2 = sum_{s,t} [index_s = index_t] d_s . d_t

    Where tables are small and sequences long, adding the d_t up in a table per example takes fewer operations. A row of
    n terms errs by at most n u of their magnitudes, so that |g| is at most what the table shows and (n + 2) u m.

    Attributes:
        outputs: d, of shape (examples, places, width).
        indices: The rows that were looked up, (examples, places).
        table: How many rows the table has.
    """

    outputs: torch.Tensor
    indices: torch.Tensor
    table: int

    def bounds(self) -> Bounds:
        """From the tables of a few examples at a time, or the Gram matrix of d, masked by equal indices; rounded up."""
        if not self._prefers_tables():
            same = self.indices.unsqueeze(1) == self.indices.unsqueeze(2)
            return pair_bounds(self.outputs @ self.outputs.mT, same, self.outputs.shape[2], 0)
        size = max(1, CHUNK_ELEMENTS // (self.table * self.outputs.shape[2]))
        chunks = zip(torch.split(self.outputs, size), torch.split(self.indices, size), strict=True)
        tables = torch.cat([squares(Lookups(*chunk, self.table).materialise()[0]) for chunk in chunks])
        magnitudes = squares(self.outputs, 2).sqrt().sum(1).square()
        return raised(tables, magnitudes, self.outputs, self.outputs.shape[1], self.outputs.shape[2])

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """The scaled d_t, added to their rows."""
        return [lookup_sum(self.outputs, self.indices, coefficients, self.table)]

    def materialise(self) -> Sequence[torch.Tensor]:
        """One table per example: the rows of one large table."""
        count, _, width = self.outputs.shape
        rows = self.indices + self.table * torch.arange(count, device=self.indices.device).unsqueeze(1)
        tables = self.outputs.new_zeros(count * self.table, width)
        return [tables.index_add_(0, rows.flatten(), self.outputs.flatten(0, 1)).view(count, self.table, width)]

    def _prefers_tables(self) -> bool:
        """A rule on shapes alone, so that runs reproduce."""
        _, places, width = self.outputs.shape
        return self.table * width < 4 * places * places

    def select(self, rows: Rows) -> Lookups:
        """The lookups of some examples."""
        return Lookups(self.outputs[rows], self.indices[rows], self.table)

    def folded(self, places: int) -> Lookups:
        """The places of all rows of an example are its places."""
        indices = self.indices.reshape(len(self.indices) // places, -1)
        return Lookups(_together(self.outputs, places), indices, self.table)


@dataclass(frozen=True, eq=False)
class SharedLookups:
    """Gradients of an embedding table of which every example looks up the same rows, each once (positions).

    The d_t of an example are its gradient, at other places: |g|^2 = sum_t |d_t|^2.

    Attributes:
        outputs: d, of shape (examples, places, width).
        rows: The rows that were looked up, all different, (places).
        table: How many rows the table has.
    """

    outputs: torch.Tensor
    rows: torch.Tensor
    table: int

    def bounds(self) -> Bounds:
        """Entry by entry: no two places have a row in common."""
        return held_bounds([self.outputs])

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """The sum of the d_t at every place, in the place's row."""
        return [self._in_table(sum_rows(self.outputs, coefficients, single).unsqueeze(0))[0]]

    def materialise(self) -> Sequence[torch.Tensor]:
        """One table per example."""
        return [self._in_table(self.outputs)]

    def select(self, rows: Rows) -> SharedLookups:
        """The lookups of some examples."""
        return SharedLookups(self.outputs[rows], self.rows, self.table)

    def folded(self, places: int) -> SharedLookups:
        """All rows of an example look up the same: their d_t add up."""
        return SharedLookups(apart(self.outputs, places).sum(1), self.rows, self.table)

    def _in_table(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(values), self.table, values.shape[2]).index_copy_(1, self.rows.long(), values)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Gradients of parameters that are made of blocks of rows, one form per block (the three of attention)."""

    forms: tuple[Form, ...]

    def bounds(self) -> Bounds:
        """Blocks are orthogonal: their squares add."""
        return added(form.bounds() for form in self.forms)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """The blocks' sums, one under the other."""
        parts = zip(*[form.weighted_sum(coefficients, single=single) for form in self.forms], strict=True)
        return [torch.cat(blocks) for blocks in parts]

    def materialise(self) -> Sequence[torch.Tensor]:
        """The blocks' gradients, one under the other."""
        parts = zip(*[form.materialise() for form in self.forms], strict=True)
        return [torch.cat(blocks, dim=1) for blocks in parts]

    def select(self, rows: Rows) -> Blocks:
        """Some examples of every block."""
        return Blocks(tuple(form.select(rows) for form in self.forms))


@dataclass(frozen=True, eq=False)
class Summed:
    """Gradients of parameters that were used more than once: the sum of what each use contributes.

    The uses are not orthogonal, |g + h|^2 = |g|^2 + |h|^2 + 2 g . h, so norms need the uses together: as one
    longer sequence where all of them are `OuterProducts`, by materialised sums of a few examples otherwise. These are
    also what is summed then: uses that cancel in an example have to cancel before they meet others.

    A table that is also the weight of a linear map (the words of a language model) is the first case too: a lookup of
    row v with the gradient d adds e_v d^T, the outer product with a vector that is 1 at v and 0 elsewhere. Its product
    with the map's output gradient is one entry of that, so that nothing as large as the table is held.
    """

    forms: tuple[Form, ...]
    count: int

    def bounds(self) -> Bounds:
        """Over the summed gradients, in chunks of examples."""
        outer = self._outer_products()
        if outer:
            return outer[0].joined(outer[1:]).bounds()
        if self._tied():
            return self._tied_bounds()
        parts = [self._dense(chunk).bounds() for chunk in self._chunks()]
        return Bounds(*[torch.cat(each) for each in zip(*parts, strict=True)])

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """Weighted sums are linear: the uses' sums add. The same chunks of examples otherwise."""
        if self._outer_products() or self._tied():
            sums = [form.weighted_sum(coefficients, single=single) for form in self.forms]
        else:
            chunks = self._chunks()
            sums = [self._dense(chunk).weighted_sum(coefficients[chunk], single=single) for chunk in chunks]
        return [sum_tensors(parts) for parts in zip(*sums, strict=True)]

    def _outer_products(self) -> list[OuterProducts]:
        """The forms, if all of them are of this kind."""
        outer = [form for form in self.forms if isinstance(form, OuterProducts)]
        return outer if len(outer) == len(self.forms) else []

    def _tied(self) -> bool:
        """Whether all uses are lookups or linear maps without a bias."""
        return all(
            isinstance(form, Lookups) or (isinstance(form, OuterProducts) and len(form.inputs) == 1 and not form.biases)
            for form in self.forms
        )

    def _tied_bounds(self) -> Bounds:
        """By the Gram matrices of the places of all uses, a few examples at a time."""
        places = sum(form.outputs[0, ..., 0].numel() for form in self.forms)  # type: ignore[attr-defined]
        size = max(1, CHUNK_ELEMENTS // max(1, places * places))
        chunks = [slice(start, start + size) for start in range(0, max(1, self.count), size)]
        parts = [_bounds_of_tied(self.select(chunk).forms) for chunk in chunks]
        return Bounds(*[torch.cat(each) for each in zip(*parts, strict=True)])

    def _chunks(self) -> list[slice]:
        width = sum(part.numel() for part in self.select(slice(0, 1)).materialise())
        size = max(1, CHUNK_ELEMENTS // max(1, width))
        return [slice(start, start + size) for start in range(0, max(1, self.count), size)]

    def _dense(self, rows: slice) -> Dense:
        return Dense(tuple(self.select(rows).materialise()))

    def materialise(self) -> Sequence[torch.Tensor]:
        """The uses' gradients, added."""
        parts = zip(*[form.materialise() for form in self.forms], strict=True)
        return [sum_tensors(uses) for uses in parts]

    def select(self, rows: Rows) -> Summed:
        """Some examples of every use."""
        count = len(range(*rows.indices(self.count))) if isinstance(rows, slice) else len(rows)
        return Summed(tuple(form.select(rows) for form in self.forms), count)


def _bounds_of_tied(forms: Sequence[Form]) -> Bounds:
    """Bounds on sums of u_t w_t^T, where u_t and w_t are d_t and a_t of a linear map, or e_v and d_t of a lookup."""
    outer = [form for form in forms if isinstance(form, OuterProducts)]
    lookups = [form for form in forms if isinstance(form, Lookups)]
    given, indices = torch.cat([form.outputs for form in lookups], 1), torch.cat([form.indices for form in lookups], 1)
    if not outer:
        return Lookups(given, indices, lookups[0].table).bounds()
    maps = outer[0].joined(outer[1:])
    entries = maps.outputs.gather(2, indices.unsqueeze(1).expand(-1, maps.outputs.shape[1], -1))
    same = (indices.unsqueeze(1) == indices.unsqueeze(2)).to(entries.dtype)
    upper = torch.cat([maps.outputs @ maps.outputs.mT, entries], 2)
    of_left, right = torch.cat([upper, torch.cat([entries.mT, same], 2)], 1), torch.cat([maps.inputs[0], given], 1)
    return pair_bounds(of_left, right @ right.mT, maps.outputs.shape[2], right.shape[2])


def by_parameter(form: Form) -> Sequence[Form]:
    """A form for each of the parameters."""
    if isinstance(form, OuterProducts):
        maps = [OuterProducts(form.outputs, (each,)) for each in form.inputs]
        biases = OuterProducts(form.outputs, (), 1).materialise()
        return [*maps, *[Dense(tuple(biases))] * form.biases]
    return [Dense((part,)) for part in form.materialise()]


def affine(outputs: torch.Tensor, inputs: Sequence[torch.Tensor], biases: int) -> Form:
    """The form of an affine map's gradients; see `OuterProducts` for the arguments.

    The gradients are held themselves where they are smaller than the outputs and inputs they are made of, which
    is also where they cost fewer operations than Gram matrices: T (I + O) >= I O. The choice depends on shapes
    alone, so that runs reproduce.
    """
    if outputs.dim() == 3 and outputs.shape[1] == 1:
        outputs, inputs = outputs.squeeze(1), [each.squeeze(1) for each in inputs]
    form = OuterProducts(outputs, tuple(inputs), biases)
    width = sum(each.shape[-1] for each in inputs)
    places = outputs.shape[1] if outputs.dim() == 3 else 1
    if not inputs or (places > 1 and places * (width + outputs.shape[-1]) >= width * outputs.shape[-1]):
        return Dense(tuple(form.materialise()))
    return OuterProducts(outputs.contiguous(), tuple([each.contiguous() for each in inputs]), biases)


def apart(values: torch.Tensor, places: int) -> torch.Tensor:
    """(rows, ...) as (examples, rows of an example, ...)."""
    return values.reshape(len(values) // places, places, *values.shape[1:])


def _together(values: torch.Tensor, places: int) -> torch.Tensor:
    """(rows, [places of a row,] features) as (examples, places of all its rows, features)."""
    return values.reshape(len(values) // places, -1, values.shape[-1])


def pair_bounds(one: torch.Tensor, other: torch.Tensor, one_terms: int, other_terms: int) -> Bounds:
    """Bounds on sum_t d_t a_t^T for each example, |g|^2 = sum_{s,t} D_st K_st, from computed D = d d^T and K = a a^T.

    An entry of D errs by at most (n + 2) u |d_s| |d_t| + 2 n eta, n the number of its terms, and so does one of K. The
    sum over t and then over s adds 2 T + 3 roundings. With m = sum_s |d_s| |a_s|, x = sum_s |a_s|, y = sum_s |d_s|, all
    that roundings may have taken from the sum is at most

        (n + n' + 2 T + 8) u (1 + 2^-4) m^2 + 4 (n + 2) eta x^2 + 4 (n' + 2) eta y^2 + 8 (n + n' + 1) T^2 eta,

    where the diagonals, raised by the same bounds, stand for |d_s|^2 and |a_s|^2. If contributions cancel, the sum is
    far below m^2 and its digits are lost: without this a gradient could be measured as 0 and never be clipped.

    Args:
        one: D, (examples, places, places).
        other: K, of the same shape, or a mask of it, whose entries are exact.
        one_terms: n, how many products are added up in an entry of D.
        other_terms: The same for K.
    """
    kind, places = torch.finfo(one.dtype), one.shape[1]
    total: torch.Tensor = (one * other).sum(2).sum(1).double()
    y, x = (_lengths(gram, kind, terms) for gram, terms in ((one, one_terms), (other, other_terms)))
    magnitudes = (x * y).sum(1).square()
    margin = (one_terms + other_terms + 2 * places + 8) * kind.eps / 2 * (1 + 2**-4) * magnitudes
    margin += 4 * kind.tiny * ((one_terms + 2) * x.sum(1).square() + (other_terms + 2) * y.sum(1).square())
    flushed = 8 * (one_terms + other_terms + 1) * places**2 * kind.tiny
    return Bounds((total + margin).clamp_min(0) + flushed, magnitudes)


def raised(squared: torch.Tensor, magnitudes: torch.Tensor, like: torch.Tensor, terms: int, entries: int) -> Bounds:
    """Bounds on gradients that were computed once for their norms, and are computed anew where they are summed.

    An entry is a sum of n terms, so that it errs by at most (n + 2) u (1 + 2^-4) of their magnitudes, and by 2 n eta:
    the norms of what is summed are at most |g| + 2 (n + 2) u m + 2 n eta sqrt(entries).

    Args:
        squared: At least the squared norms of the gradients that were computed.
        magnitudes: m^2.
        like: A tensor of the type in which they were computed.
        terms: n.
        entries: How many entries have terms.
    """
    kind = torch.finfo(like.dtype)
    hidden = (terms + 2) * kind.eps * magnitudes.sqrt() + 2 * terms * math.sqrt(entries) * kind.tiny
    return Bounds((squared.sqrt() + hidden).square(), magnitudes)


def held_bounds(gradients: Iterable[torch.Tensor]) -> Bounds:
    """Bounds on gradients that are held: they are what is summed, and an example has one summand."""
    given = list(gradients)
    by_kernel = sums.held_squares(given)
    norms = _sum_above(map(squares, given)) if by_kernel is None else by_kernel
    return Bounds(norms, norms)


def bounds_of_all(forms: Iterable[Form]) -> Bounds:
    """Bounds on the gradients of forms side by side: of what is held together, of which there are many."""
    apart: list[Bounds] = []
    held: list[torch.Tensor] = []
    for form in forms:
        if type(form) is Dense:
            held += form.gradients
        else:
            apart.append(form.bounds())
    return added([*apart, held_bounds(held)] if held else apart)


def added(parts: Iterable[Bounds]) -> Bounds:
    """Bounds on gradients side by side."""
    first, *others = parts
    if not others:
        return first
    norms, magnitudes = zip(first, *others, strict=True)
    return Bounds(_sum_above(norms), _sum_above(magnitudes))


def _sum_above(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    """At least the sum of float64 tensors of no negative numbers: raised by twice its roundings, one for each."""
    given = list(terms)
    return sum_tensors(given) * (1 + len(given) * 2**-52)


def _lengths(gram: torch.Tensor, kind: torch.finfo, terms: int) -> torch.Tensor:
    """At least the lengths whose squares are on the diagonals, in float64."""
    squared = gram.diagonal(dim1=1, dim2=2).double()
    return ((1 + (terms + 2) * kind.eps) * squared + 2 * terms * kind.tiny).sqrt()


def sum_rows(gradients: torch.Tensor, coefficients: torch.Tensor, single: bool) -> torch.Tensor:
    """sum_i coefficients[i] gradients[i], for gradients of any shape."""
    flat = gradients.reshape(len(gradients), gradients.shape[1:].numel())
    return row_sum(flat, coefficients, single=single).view(gradients.shape[1:])


def sum_tensors(terms: Iterable[torch.Tensor], start: int = 0) -> torch.Tensor:
    """The sum of at least one tensor, and of a number."""
    first, *others = terms
    total = first + start if start else first
    for term in others:
        total = total + term
    return total


def squares(rows: torch.Tensor, kept: int = 1) -> torch.Tensor:
    """At least the squared norm over all but the first ``kept`` dimensions, in float64.

    By `squared_rows` where there is a kernel. Where there is none, `_SQUARED_AT_ONCE` squares at most are added up in
    the type of the rows, so that a squared norm is raised by twice the 260 u, and by the 2 n eta, that roundings may
    have taken from it.
    """
    flat = rows.reshape(*rows.shape[:kept], rows.shape[kept:].numel())
    by_kernel = squared_rows(flat)
    if by_kernel is not None:
        return by_kernel
    kind, width = torch.finfo(rows.dtype), flat.shape[kept]
    pieces = width // _SQUARED_AT_ONCE
    whole = flat[..., : pieces * _SQUARED_AT_ONCE].reshape(*flat.shape[:kept], pieces, _SQUARED_AT_ONCE)
    parts = [whole, flat[..., pieces * _SQUARED_AT_ONCE :].unsqueeze(kept)]
    found = [torch.linalg.vector_norm(part, dim=-1).double().square().sum(kept) for part in parts if part.numel()]
    terms = min(width, _SQUARED_AT_ONCE) + 4
    total = sum_tensors(found) if found else flat.new_zeros(flat.shape[:kept], dtype=torch.float64)
    return (1 + terms * kind.eps) * total + 2 * width * kind.tiny


def pixel_squares(images: torch.Tensor) -> torch.Tensor:
    """`squares` over the channels of images, (examples, channels, height, width), in every pixel."""
    by_kernel = squared_pixels(images)
    return squares(images.movedim(1, -1), 3) if by_kernel is None else by_kernel
