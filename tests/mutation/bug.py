"""A planted bug."""

from typing import NamedTuple


class Bug(NamedTuple):
    """One edit that some test must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
