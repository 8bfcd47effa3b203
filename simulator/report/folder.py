"""Result folders: written beside their place under a hidden name, then swapped in whole.

Nothing half-written is ever seen. Every folder holds MARKER, which lists its files; a folder is replaced only
when it is empty or all that is in it is listed: what somebody else put there is never deleted.
"""

import ctypes
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from simulator.errors import ConfigError
from simulator.reading import MAX_RESULT, ReadError, absolute, read_json

MARKER: Final = ".servecast.json"
_ASIDE: Final = "-replaced"
_AT_FDCWD: Final = -100  # linux/fcntl.h: paths relative to the working folder
_RENAME_EXCHANGE: Final = 2  # linux/fs.h


def check_target(out: str | Path) -> Path:
    """Absolute path of an output folder; raises ConfigError when it may not be written or replaced."""
    path = absolute(out)
    if path.is_dir():
        if any(path.iterdir()):
            _check_ours(path)
    elif path.exists():
        raise ConfigError(
            f"{out}: is a file; accepted: a new folder, an empty one, or one servecast has written"
        )
    else:
        above = next(parent for parent in path.parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ConfigError(f"{out}: cannot be made: {above} is not a folder that may be written to")
    return path


def _check_ours(path: Path) -> None:
    accepted = "accepted: a new folder, an empty one, or one that holds only what servecast has written"
    try:
        listed = set(read_json(path / MARKER, MAX_RESULT)["files"])
    except (ReadError, KeyError, TypeError):
        raise ConfigError(
            f"{path}: is not a result folder of servecast and will not be replaced; {accepted}"
        ) from None
    for found in _files(path):
        if found not in listed:
            raise ConfigError(f"{path}: {found} was not written by servecast and would be lost; {accepted}")


def _files(path: Path) -> list[str]:
    """Relative names, sorted, of everything below `path` but folders and the marker at its top."""
    names = []
    for folder, below, files in os.walk(path):
        links = [name for name in below if (Path(folder) / name).is_symlink()]
        names += [(Path(folder) / name).relative_to(path).as_posix() for name in files + links]
    return sorted(name for name in names if name != MARKER)


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """Yield a hidden folder to fill: when the block ends well it takes the place of `out`, else it goes.

    Raises ConfigError as check_target does, before the block and again before the swap; OSError (disk full,
    permission) and KeyboardInterrupt pass through and leave `out` as it was.
    """
    path = check_target(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    fresh = Path(tempfile.mkdtemp(prefix=f"{_prefix(path)}{os.getpid()}-", dir=path.parent))
    try:
        yield fresh
        _mark(fresh)
        fresh.chmod(0o777 & ~_umask())
        check_target(path)
        _swap(fresh, path)
    except OSError as error:
        error.filename = error.filename or str(out)  # writing to a full disk names no file
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name}.servecast-{platform.node()}-"


def _mark(folder: Path) -> None:
    text = json.dumps({"written_by": "servecast", "files": _files(folder)}, indent=1)
    (folder / MARKER).write_text(text + "\n", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _swap(fresh: Path, path: Path) -> None:
    """Put `fresh` in the place of `path`; what was there ends up under the name of `fresh`.

    One system call where the file system can exchange two folders (Linux), else two renames, undone on error.
    """
    if not path.exists():
        fresh.rename(path)
    elif not _exchange(fresh, path):
        aside = fresh.with_name(fresh.name + _ASIDE)
        path.rename(aside)
        try:
            fresh.rename(path)
        except BaseException:
            aside.rename(path)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """renameat2(2) with RENAME_EXCHANGE; False when the system or file system has none."""
    call = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    done: int = call(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), ctypes.c_uint(_RENAME_EXCHANGE))
    return done == 0


def _sweep(path: Path) -> None:
    """Clear up after killed writers of the same output: put back what was set aside, delete the rest."""
    for left in path.parent.glob(f"{_glob_safe(_prefix(path))}*"):
        pid = left.name.removeprefix(_prefix(path)).split("-")[0]
        if not pid.isdigit() or _alive(int(pid)):
            continue
        if left.name.endswith(_ASIDE) and not path.exists():
            left.rename(path)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _glob_safe(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
