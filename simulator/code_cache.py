"""Compiled code on disk: one file a function and signature, in a folder that nobody else can write to.

Loading machine code runs it, so a file is used only when the folder and the file belong to the user (or to root)
and no one else may write to them, when it says that it was made for the key asked for, and when its checksum is
right. Anything else counts as not there and is made again. Files appear whole; a folder that cannot be written
keeps nothing.
"""

import functools
import hashlib
import logging
import multiprocessing
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from simulator.atomic import PART, atomic

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC: Final = b"servecast compiled code, layout 1\n"
LONGEST_WAIT_S: Final = 300.0
"""How long to wait for another process that makes the same code, before making it here too."""
LONG: Final = ("engine-", "control")
"""Beginnings of the names of functions that take long to compile."""
_ABANDONED_S: Final = 3600.0
_UNUSED_S: Final = 30 * 86_400.0
_VERSION: Final = re.compile("[0-9a-f]{16}-[0-9a-f]{8}")
"""What the folder of a version is called (simulator.jit)."""
_log: Final = logging.getLogger("servecast")


def cache_home() -> Path | None:
    """$SERVECAST_CACHE, or `servecast` in the user's cache folder; None where the user has no home."""
    given = os.environ.get("SERVECAST_CACHE")
    if given:
        return Path(given).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return base / "servecast" if base.is_absolute() else None


@functools.cache
def tell_once(text: str) -> None:
    """A line on stderr, unless the program that uses servecast sends its log elsewhere."""
    _log.warning(text)


def tell_compiling(name: str) -> None:
    """Say that an engine is being compiled, before the wait. Worker processes leave that to who started them."""
    if name.startswith(LONG) and multiprocessing.parent_process() is None:
        part = "the part that changes fleets" if name == "control" else name.removeprefix("engine-")
        part, of = ("your policy", "your file") if part.startswith("own-") else (part, "servecast")
        tell_once(f"compiling the engine ({part}), once for this version of {of}: a minute or two")


class CodeCache:
    """The files of one version of the sources on one kind of machine; `folder` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        """Whether code of that name, for whatever signature, is there and sound."""
        return any(self._read(path) is not None for path in self._files(name))

    def load(self, name: str, key: str) -> bytes | None:
        """What was saved under name and key, None when it is not there or not sound: it is made then, and that said."""
        found = self._read(self.folder / _file(name, key)) if self.folder and self._is_ours() else None
        if found is None:
            tell_compiling(name)
        return found

    def save(self, name: str, key: str, content: bytes) -> None:
        """Keep `content`; says why when that cannot be done."""
        if not self.writable():
            return
        assert self.folder is not None
        target = self.folder / _file(name, key)
        try:
            with atomic(target) as part:
                part.write_bytes(_head(target.name, content) + content)
            self._clear()
        except OSError as error:
            _not_kept(target, error)

    def writable(self) -> bool:
        """Make the folder where it is missing; False, and a line that says why, when nothing can be kept."""
        if self.folder is None:
            tell_once("compiled code is not kept: no home folder; set SERVECAST_CACHE to a folder of yours")
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            _not_kept(self.folder, error)
            return False
        if not os.access(self.folder, os.W_OK):
            _not_kept(self.folder, "it may not be written to")
            return False
        return self._is_ours()

    @contextmanager
    def alone(self, name: str, wait_s: float = LONGEST_WAIT_S) -> Iterator[bool]:
        """Hold the lock `name`; False when another process still has it after `wait_s`.

        The system lets go of it when the holder ends, however that happens. Without locks everyone is alone.
        """
        handle = self._open_lock(name)
        if handle is None:
            yield True
            return
        try:
            yield _locked(handle, wait_s)
        finally:
            os.close(handle)

    def _open_lock(self, name: str) -> int | None:
        if fcntl is None or self.folder is None or not self._is_ours():
            return None
        try:
            return os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None

    def _is_ours(self) -> bool:
        assert self.folder is not None
        try:
            found = os.lstat(self.folder)
        except OSError:
            return False
        if stat.S_ISDIR(found.st_mode) and _trusted(found):
            return True
        tell_once(f"{self.folder}: compiled code in it is not used: others may write to it (owner {found.st_uid}, mode "
                  f"{stat.S_IMODE(found.st_mode):o}); chmod go-w, or set SERVECAST_CACHE to a folder of yours")
        return False

    def _files(self, name: str) -> list[Path]:
        return list(self.folder.glob(f"{name}-*.code")) if self.folder and self._is_ours() else []

    def _read(self, path: Path) -> bytes | None:
        """The content of a sound file; one that is not is removed."""
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return None
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            data = file.read() if stat.S_ISREG(found.st_mode) and _trusted(found) else b""
        size = len(_head(path.name, b""))
        if data[:size] == _head(path.name, data[size:]):
            with suppress(OSError):
                os.utime(path.parent)  # used today
            return data[size:]
        tell_once(f"{path}: is damaged or not yours; it is made again")
        with suppress(OSError):
            path.unlink()
        return None

    def _clear(self) -> None:
        """Remove what killed processes have left half-written, and code of versions not used for a month."""
        assert self.folder is not None
        for path in self.folder.glob(f"{PART}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
        for folder in self.folder.parent.iterdir():
            with suppress(OSError):
                if _VERSION.fullmatch(folder.name) and time.time() - folder.lstat().st_mtime > _UNUSED_S:
                    shutil.rmtree(folder)


def _file(name: str, key: str) -> str:
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.code"


def _head(name: str, content: bytes) -> bytes:
    """What stands before the content: layout, file name (so a file cannot stand for another) and checksum."""
    return MAGIC + hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest()


def _trusted(found: os.stat_result) -> bool:
    """True when only the user and the system's administrator can have written it."""
    return not hasattr(os, "geteuid") or (found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022)


def _not_kept(path: Path, why: OSError | str) -> None:
    reason = why.strerror or why if isinstance(why, OSError) else why
    tell_once(f"compiled code is not kept: {path}: {reason}; set SERVECAST_CACHE to a folder of yours")


def _locked(handle: int, wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return True
