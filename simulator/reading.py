"""Small text files, read with an eye on what they are: regular, of a sane size, UTF-8; JSON not nested for ever.

Traces have readers of their own (workload.sources); everything else that people write or that we wrote before
comes through here.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from simulator.errors import ConfigError, ServecastError

MAX_TEXT: Final = 4 * 2**20
"""Largest YAML or JSON file of settings [bytes]."""
MAX_RESULT: Final = 256 * 2**20
"""Largest JSON file that we write ourselves [bytes]."""
_PER_VALUE: Final = 72
_MEMORY: Final = 900 * 2**20


class ReadError(ServecastError):
    """A file cannot be read; the message is the reason, without the file's name."""


def absolute(path: str | Path) -> Path:
    """An output's absolute path. Raises ConfigError for a name that cannot be written as UTF-8 or links in a circle."""
    try:
        str(path).encode()
        return Path(path).resolve()
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: is no name in UTF-8; accepted: a folder with another name") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path}: is no path: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: str | Path, largest: int = MAX_TEXT) -> str:
    """The text of a regular file of at most `largest` bytes. Raises ReadError with the reason.

    A byte-order mark is skipped. What is asked for is looked at before it is opened: a pipe would wait for ever.
    """
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            raise ReadError("is a folder")
        if not stat.S_ISREG(facts.st_mode):
            raise ReadError("must be a regular file, not a device or pipe")
        if facts.st_size > largest:
            raise ReadError(f"holds {facts.st_size:,} bytes; accepted: at most {largest:,}")
        with open(path, "rb") as file:
            raw = file.read(largest + 1)
        if len(raw) > largest:
            raise ReadError(f"holds more than {largest:,} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ReadError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ReadError(f"not UTF-8: byte {raw[error.start]:#04x} in line {line}") from None
    except ValueError as error:  # a NUL in the path
        raise ReadError(str(error)) from error


def read_json(path: str | Path, largest: int = MAX_TEXT) -> Any:
    """A JSON file. Raises ReadError with the reason, also for one nested too deeply or too large in memory."""
    text = read_text(path, largest)
    if 2 * len(text) + _PER_VALUE * (text.count("[") + text.count("{") + text.count(",")) > _MEMORY:
        raise ReadError("holds too many values")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ReadError(f"not JSON: line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ReadError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise ReadError(f"not JSON: {str(error)[:200]}") from None
