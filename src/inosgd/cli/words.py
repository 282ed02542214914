"""Words: what people write with commas in between."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """The words of a text, each once, in its order.

    >>> words("idp-sgd, ino-sgd,, idp-sgd")
    ['idp-sgd', 'ino-sgd']
    """
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def words_if_given(text: str | None) -> list[str] | None:
    """The same for an option; None if it is not given."""
    return None if text is None else words(text)
