"""Exceptions raised by servecast.

    ServecastError                 everything below; the CLI prints it as one line and exits with code 2
    ├── ConfigError                a scenario, plan or profile says something that is not accepted
    │   └── UnknownNameError       a name that is not in a registry; the message lists the known ones
    ├── TraceError                 a trace row cannot be used; the message names file and row
    ├── CapacityError              the model does not fit the memory of the GPUs asked for
    ├── NoProgressError            requests wait, nothing runs and nothing will wake the engine
    └── CalibrationError           a measurement file, harness run or fit cannot be used
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MOST_NAMES: Final = 40
"""More known names than these are not listed where a command does."""
LISTS: Final = {"model": "servecast models", "scenario": "servecast scenarios"}


class ServecastError(Exception):
    """Base of every error a user can cause or must know of."""


class ConfigError(ServecastError):
    """A value in a YAML file, an override or an argument is not accepted."""


class UnknownNameError(ConfigError):
    """A name is not registered. The message names the nearest, and lists what is known or the command that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "", hint: str = "") -> None:
        prefix = f"{where}: " if where else ""
        names = sorted(known)
        near = [] if hint else get_close_matches(name.lower(), names, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else hint
        listed = ", ".join(names)
        if len(names) > MOST_NAMES and kind in LISTS:
            listed = f"{len(names)}, {LISTS[kind]} lists them"
        super().__init__(f"{prefix}unknown {kind} {name!r}{f' ({hint})' if hint else ''}; known: {listed}")


class TraceError(ServecastError):
    """A trace cannot be read or holds a row that cannot be replayed."""


class CapacityError(ServecastError):
    """Weights and reserves leave no memory for a single KV block."""


class NoProgressError(ServecastError):
    """The simulation would stand still for ever; the message says what waits and why."""


class CalibrationError(ServecastError):
    """A measurement or a fit is missing, malformed or outside its range."""
