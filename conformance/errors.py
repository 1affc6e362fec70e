"""What the command line turns into exit codes (spec §1)."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    AS_EXPECTED = 0
    UNEXPECTED = 1
    USAGE = 2
    ACCOUNTS = 3


class ConformanceError(Exception):
    """A failure that a person can act on; the message says what happened, where, and what to do next."""

    code = Exit.USAGE


class NothingSelectedError(ConformanceError):
    """A selection came out empty: never a success, because a typo would look like a pass (C27)."""

    code = Exit.ACCOUNTS


class AccountsError(ConformanceError):
    """Results that do not add up, or not to the whole that was asked for (C27)."""

    code = Exit.ACCOUNTS
