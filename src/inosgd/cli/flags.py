"""Flags: an error names an option as its user writes it, also where the code that found it knows an argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from inosgd.cli.commands import COMMANDS

OTHER_NAMES = {"expected_batch_size": "batch", "clipping_threshold": "threshold"}
"""Options that are called differently from the arguments that they become."""


def with_flags(message: str, arguments: Sequence[str]) -> str:
    """The message in which options of the command in ``arguments`` stand as flags.

    An argument that the message begins with is a flag, if it was given. One that the message proposes to be True is a
    flag. Under ``inosgd plan``, which reads no study, every argument of several words is one.

    >>> with_flags("steps=0: give 1 or more, or allow_large_deltas=True", ["plan", "--steps", "0"])
    '--steps=0: give 1 or more, or --allow-large-deltas'
    """
    flags = _flags(arguments)
    given = {word.partition("=")[0] for word in arguments}
    if "-o" in given and "out" in flags:
        given.add(flags["out"])
    for name, flag in flags.items():
        if flag in given:
            message = re.sub(rf"^{name}=", f"{flag}=", message)
        message = re.sub(rf"\b{name}=True\b", flag, message)
        if arguments[0] == "plan" and "_" in name:
            message = re.sub(rf"(?<![\w.-]){name}\b", flag, message)
    if "delimiter" in flags:  # commands that have this option read no study
        message = message.replace("data.delimiter", flags["delimiter"])
    return message


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """The flag of each option of the command that was asked for, by the name of its argument."""
    words = [word for word in arguments if not word.startswith("-")]
    if not words or words[0] not in COMMANDS:
        return {}
    command: Any = COMMANDS[words[0]].load(words[0])
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    found = {option.name: max(option.opts, key=len) for option in command.params if option.opts[0].startswith("-")}
    named = {flag.removeprefix("--"): flag for flag in found.values()}  # as errors of the command itself call them
    return found | named | {other: found[name] for other, name in OTHER_NAMES.items() if name in found}
