"""Functions in a Python of their own: arguments there, results and errors back."""

from __future__ import annotations

import pytest

from inosgd.bench.new_process import in_new_process
from inosgd.errors import InosgdError


def test_a_result_comes_back():
    assert in_new_process("operator", "add", [1.5], ["text"]) == [1.5, "text"]


def test_an_error_is_the_last_line_of_it():
    with pytest.raises(InosgdError, match="ZeroDivisionError: division by zero"):
        in_new_process("operator", "truediv", 1, 0)
