"""Opening trace files with an eye on their size: what a file unpacks to is checked before memory is taken."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from simulator.errors import TraceError

MAX_LINE: Final = 128 * 2**20
"""Longest line of a text file [bytes]."""
MAX_BLANK: Final = 1_000_000
"""Most blank lines."""
MAX_PARSED: Final = 2**30
"""Most memory that one JSON value may need when it is parsed [bytes], as estimated before."""
MAX_RATIO: Final = 100
"""Most times its own size that a gzipped file may unpack to, above _ALWAYS bytes."""
_ALWAYS: Final = 32 * 2**20
DROPPED: Final = "--drop-bad-rows (bad_rows: drop) leaves out and counts such rows"
"""Ends the message of a row that cannot be replayed."""
READ_ERRORS: Final = (UnicodeError, OSError, EOFError, zlib.error)
"""What reading a damaged file raises."""


def regular(path: Path) -> None:
    """Raise TraceError for what is no regular file: a pipe or device may never end."""
    if not path.exists():
        raise TraceError(f"{path}: no such trace file")
    if not path.is_file():
        raise TraceError(f"{path}: must be a regular file, not a device, pipe or folder")


def file_sha256(path: Path) -> str:
    """SHA-256 of the file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Unpacked(io.RawIOBase):
    """The content of a gzipped file; refuses one that unpacks to far more than it holds."""

    def __init__(self, path: Path) -> None:
        self._path, self._packed, self._total = path, path.stat().st_size, 0
        self._file = gzip.open(path, "rb")  # noqa: SIM115  (closed with this object)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._total += count
        if self._total > _ALWAYS and self._total > MAX_RATIO * self._packed:
            raise TraceError(f"{self._path}: unpacks to more than {MAX_RATIO} times its {self._packed} bytes; "
                             "unpack it first if it is meant so")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, .gz unpacked."""
    if path.suffix == ".gz":
        return io.BufferedReader(_Unpacked(path), 1 << 20)
    return path.open("rb")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of every line that is not blank: UTF-8, byte-order mark skipped.

    Raises TraceError for a line longer than MAX_LINE, more than MAX_BLANK blank lines or a NUL.
    """
    blank = 0
    with open_bytes(path) as file:
        number = 0
        while raw := file.readline(MAX_LINE + 1):
            number += 1
            if len(raw) > MAX_LINE:
                raise TraceError(f"{path}:{number}: line longer than {MAX_LINE >> 20} MiB; accepted: one row a line")
            if not raw.strip():
                blank += 1
                if blank > MAX_BLANK:
                    raise TraceError(f"{path}:{number}: more than {MAX_BLANK:,} blank lines")
                continue
            if b"\0" in raw:
                raise TraceError(f"{path}:{number}: holds a NUL byte; accepted: UTF-8 text")
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")


def parsed_bytes(text: str | bytes) -> int:
    """[bytes] that JSON text may take when parsed, from what can be counted fast: containers, values, texts."""
    if isinstance(text, bytes):
        brackets, commas, quotes = text.count(b"[") + text.count(b"{"), text.count(b","), text.count(b'"')
    else:
        brackets, commas, quotes = text.count("[") + text.count("{"), text.count(","), text.count('"')
    return 2 * len(text) + 72 * brackets + 32 * commas + 28 * quotes
