"""With how many examples a property is tried: a few in `make test`, and several times as many in `make test-long`."""

from __future__ import annotations

from hypothesis import settings

FEW, MANY = 25, 100
"""Of a property that does not say how many."""


def tries(few: int) -> settings:
    """So many in `make test`, where one takes long or finds little."""
    return settings(max_examples=few * settings.default.max_examples // FEW)
