"""Compact forms of per-example gradients: what a layer rule returns.

A form stands for the gradients g_1 .. g_B of a batch with respect to one or more parameters, usually without
holding them. It can give the squared norms |g_i|^2 and a weighted sum of the g_i, which is all a step needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

CHUNK_ELEMENTS = 1 << 22
"""How many numbers of materialised gradients are held at once where they are needed only for their norms."""

MOST_AT_ONCE = 256
"""The most examples whose gradients torch adds up in the type of the model; sums of more are put together in float64.

A product over many examples may add them up in one order for one number of examples and in another for the next: two
neighbouring float32 sums of a few thousand equal gradients came apart by 40 unit roundoffs of the sum, and those of
65,536 by 600. Errors of small groups are small; what is left of them is in `inosgd.rounding`.
"""

Rows = torch.Tensor | slice
"""Some examples of a batch: their indices, or a slice, which copies nothing."""


class Form(Protocol):
    """The gradients of all examples of a batch with respect to some parameters."""

    def squared_norms(self) -> torch.Tensor:
        """|g_i|^2 over all parameters of the form, one number per example."""

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """sum_i coefficients[i] g_i, one tensor per parameter.

        What is added up in one operation must not be more than `MOST_AT_ONCE` gradients make; `groups` and `added_up`
        do the rest. It must be the sum of what `squared_norms` measures: where the two are computed in different ways,
        contributions that cancel may leave a norm of 0 and a sum that is not, so that norms have to be raised by what
        roundings can hide.
        """

    def materialise(self) -> Sequence[torch.Tensor]:
        """The gradients themselves, one tensor per parameter with the examples in its first dimension."""

    def select(self, rows: Rows) -> Form:
        """The same for the examples in ``rows`` alone."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Gradients that are held as they are: one tensor per parameter, first dimension the examples."""

    gradients: tuple[torch.Tensor, ...]

    def squared_norms(self) -> torch.Tensor:
        """|g_i|^2, entry by entry."""
        return sum_tensors([squares(gradient) for gradient in self.gradients])

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """One product of the coefficients with the examples' gradients as rows."""
        return [weigh_rows(coefficients, gradient) for gradient in self.gradients]

    def materialise(self) -> Sequence[torch.Tensor]:
        """What is held."""
        return self.gradients

    def select(self, rows: Rows) -> Dense:
        """Some rows of what is held."""
        return Dense(tuple(gradient[rows] for gradient in self.gradients))


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

    def squared_norms(self) -> torch.Tensor:
        """By the formula above, rounded up."""
        if self.outputs.dim() == 2:
            scale = sum_tensors([squares(each) for each in self.inputs], self.biases)
            return squares(self.outputs) * scale
        gram = sum_tensors([each @ each.mT for each in self.inputs], self.biases)
        terms = max(self.outputs.shape[2], *(each.shape[2] for each in self.inputs))
        return pair_sum(self.outputs @ self.outputs.mT, gram, terms)

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """One ordinary weight gradient with the narrower side scaled: sum_i (c_i d_i)^T a_i = sum_i d_i^T (c_i a_i).

        The places of all examples are one long sequence, in the order in which the outputs lie in memory. It is cut
        into pieces of as many rows as a group of examples has, wherever an example begins or ends.
        """
        outputs, inputs, scales = self._one_sequence(coefficients)
        pieces = groups(len(outputs), len(outputs) // max(1, len(coefficients)))
        weights = added_up(
            _product(outputs[piece], [each[piece] for each in inputs], scales[piece]) for piece in pieces
        )
        bias = [added_up(scales[piece] @ outputs[piece] for piece in pieces)] * self.biases if self.biases else []
        return [*torch.split(weights, [each.shape[1] for each in inputs], dim=1), *bias]

    def _one_sequence(self, coefficients: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
        """Outputs, inputs and coefficients, all with one row per example and place."""
        if self.outputs.dim() == 2:
            return self.outputs, self.inputs, coefficients
        by_place = self.outputs.stride(1) > self.outputs.stride(0)
        rows = [(each.transpose(0, 1) if by_place else each).flatten(0, 1) for each in (self.outputs, *self.inputs)]
        places = self.outputs.shape[1]
        scales = coefficients.repeat(places) if by_place else coefficients.repeat_interleave(places)
        return rows[0], tuple(rows[1:]), scales

    def materialise(self) -> Sequence[torch.Tensor]:
        """sum_t d_t a_t^T for every example."""
        outputs = self._sequence(self.outputs)
        weights = [outputs.mT @ self._sequence(each) for each in self.inputs]
        return [*weights, *[outputs.sum(1)] * self.biases]

    def select(self, rows: Rows) -> OuterProducts:
        """Outputs and inputs of some examples."""
        return OuterProducts(self.outputs[rows], tuple(each[rows] for each in self.inputs), self.biases)

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
    n terms errs by at most n u of their magnitudes, so that |g| is at most what the table shows and n u sum_t |d_t|.

    Attributes:
        outputs: d, of shape (examples, places, width).
        indices: The rows that were looked up, (examples, places).
        table: How many rows the table has.
    """

    outputs: torch.Tensor
    indices: torch.Tensor
    table: int

    def squared_norms(self) -> torch.Tensor:
        """From the tables of a few examples at a time, or the Gram matrix of d, masked by equal indices; rounded up."""
        if self._prefers_tables():
            size = max(1, CHUNK_ELEMENTS // (self.table * self.outputs.shape[2]))
            chunks = zip(torch.split(self.outputs, size), torch.split(self.indices, size), strict=True)
            norms = torch.cat([_norms(Lookups(*chunk, self.table).materialise()[0]) for chunk in chunks])
            magnitudes: torch.Tensor = torch.linalg.vector_norm(self.outputs, dim=2).sum(1)
            hidden = self.outputs.shape[1] * torch.finfo(self.outputs.dtype).eps * magnitudes
            return (norms + hidden).square()
        same = self.indices.unsqueeze(1) == self.indices.unsqueeze(2)
        return pair_sum(self.outputs @ self.outputs.mT, same, self.outputs.shape[2])

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """The scaled d_t, added to their rows one after the other, and so in float64."""
        scaled = (self.outputs * coefficients.view(-1, 1, 1)).flatten(0, 1).double()
        total = scaled.new_zeros(self.table, scaled.shape[1])
        return [total.index_add_(0, self.indices.flatten(), scaled).to(self.outputs.dtype)]

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

    def squared_norms(self) -> torch.Tensor:
        """Entry by entry."""
        return squares(self.outputs)

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """The sum of the d_t at every place, in the place's row."""
        return [self._in_table(weigh_rows(coefficients, self.outputs).unsqueeze(0))[0]]

    def materialise(self) -> Sequence[torch.Tensor]:
        """One table per example."""
        return [self._in_table(self.outputs)]

    def select(self, rows: Rows) -> SharedLookups:
        """The lookups of some examples."""
        return SharedLookups(self.outputs[rows], self.rows, self.table)

    def _in_table(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(values), self.table, values.shape[2]).index_copy_(1, self.rows.long(), values)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Gradients of parameters that are made of blocks of rows, one form per block (the three of attention)."""

    forms: tuple[Form, ...]

    def squared_norms(self) -> torch.Tensor:
        """Blocks are orthogonal: their squared norms add."""
        return sum_tensors([form.squared_norms() for form in self.forms])

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """The blocks' sums, one under the other."""
        parts = zip(*[form.weighted_sum(coefficients) for form in self.forms], strict=True)
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
    """

    forms: tuple[Form, ...]
    count: int

    def squared_norms(self) -> torch.Tensor:
        """Over the summed gradients, in chunks of examples."""
        outer = self._outer_products()
        if outer:
            return outer[0].joined(outer[1:]).squared_norms()
        return torch.cat([self._dense(chunk).squared_norms() for chunk in self._chunks()])

    def weighted_sum(self, coefficients: torch.Tensor) -> Sequence[torch.Tensor]:
        """Weighted sums are linear: the uses' sums add. The same chunks of examples otherwise."""
        if self._outer_products():
            parts = zip(*[form.weighted_sum(coefficients) for form in self.forms], strict=True)
            return [sum_tensors(uses) for uses in parts]
        sums = [self._dense(chunk).weighted_sum(coefficients[chunk]) for chunk in self._chunks()]
        return [added_up(parts) for parts in zip(*sums, strict=True)]

    def _outer_products(self) -> list[OuterProducts]:
        """The forms, if all of them are of this kind."""
        outer = [form for form in self.forms if isinstance(form, OuterProducts)]
        return outer if len(outer) == len(self.forms) else []

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


def _product(outputs: torch.Tensor, inputs: Sequence[torch.Tensor], scales: torch.Tensor) -> torch.Tensor:
    """sum over rows r of scales[r] d_r a_r^T, with the a of several inputs side by side."""
    scales = scales.unsqueeze(1)
    own = len(inputs) > 1  # then they are copied anyway, and the copy can be changed
    joined = torch.cat([*inputs], dim=1) if own else inputs[0]
    if joined.shape[1] < outputs.shape[1]:
        return outputs.mT @ (joined.mul_(scales) if own else joined * scales)
    return (outputs * scales).mT @ joined


def affine(outputs: torch.Tensor, inputs: Sequence[torch.Tensor], biases: int) -> Form:
    """The form of an affine map's gradients; see `OuterProducts` for the arguments.

    The gradients are held themselves where they are smaller than the outputs and inputs they are made of, which
    is also where they cost fewer operations than Gram matrices: T (I + O) >= I O. The choice depends on shapes
    alone, so that runs reproduce.
    """
    form = OuterProducts(outputs, tuple(inputs), biases)
    if inputs and outputs.dim() == 2:
        return form
    width = sum(each.shape[-1] for each in inputs)
    places = outputs.shape[1] if outputs.dim() == 3 else 1
    if not inputs or (places > 1 and places * (width + outputs.shape[-1]) >= width * outputs.shape[-1]):
        return Dense(tuple(form.materialise()))
    return form


def weigh_rows(coefficients: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """sum_i coefficients[i] rows[i], for rows of any shape."""
    flat = rows.reshape(len(rows), rows.shape[1:].numel())
    return added_up(coefficients[group] @ flat[group] for group in groups(len(rows))).view(rows.shape[1:])


def groups(count: int, places: int = 1) -> list[slice]:
    """``count`` rows in groups of as many as `MOST_AT_ONCE` examples of ``places`` rows have, or fewer."""
    size = MOST_AT_ONCE * max(1, places)
    return [slice(start, start + size) for start in range(0, max(1, count), size)]


def added_up(sums: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of at least one tensor, added up in float64 and given in their own type."""
    others = iter(sums)  # one by one, so that memory does not grow with their number
    first, total = next(others), None
    for each in others:
        total = first.to(torch.float64, copy=True) if total is None else total
        total += each
    return first if total is None else total.to(first.dtype)


def pair_sum(one: torch.Tensor, other: torch.Tensor, terms: int) -> torch.Tensor:
    """sum_{s,t} one[i,s,t] other[i,s,t] for each i, raised by what rounding may have taken away.

    Both are Gram matrices, so that |one_st| <= sqrt(one_ss one_tt), and the magnitudes that are added up are at most
    m = (sum_s sqrt(one_ss other_ss))^2. If contributions cancel, the sum is far below m and its digits are lost:
    without the margin a gradient could be measured as 0 and never be clipped.

    Guarantee:
        Inner products of n terms err by at most 6 sqrt(n) u of their magnitudes, u the unit roundoff, but with
        probability 1e-7 (Higham and Mary 2019). The margin 12 sqrt(n) u m is twice that, so the result is not below
        the true sum; in float32 it is above it by 0.001% to 0.1% in ordinary layers.

    Args:
        one: (examples, places, places).
        other: The same shape, or a mask of it.
        terms: n, the longest inner product behind an entry.
    """
    total: torch.Tensor = (one * other).sum((1, 2))
    diagonals = one.diagonal(dim1=1, dim2=2) * other.diagonal(dim1=1, dim2=2)
    magnitude = diagonals.clamp_min(0).sqrt().sum(1).square()
    margin = 6 * math.sqrt(terms) * torch.finfo(one.dtype).eps
    return (total + margin * magnitude).clamp_min(0)


def sum_tensors(terms: Sequence[torch.Tensor], start: int = 0) -> torch.Tensor:
    """The sum of at least one tensor, and of a number."""
    total = terms[0] + start if start else terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def squares(rows: torch.Tensor) -> torch.Tensor:
    """The squared norm of every row, whatever its shape."""
    return _norms(rows).square()


def _norms(rows: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return norms
