"""One decorator for the code both engines run, and a compile cache that cannot go stale.

`@jitable` leaves a plain Python function (the SimPy engine calls it, a debugger steps into it) and registers
it with numba so that the compiled engine inlines it. numba invalidates its disk cache only when the file
that holds the compiled function itself changes; an edit of an inlined policy would run stale machine code.
The cache folder is therefore named by a hash over every source file that can be inlined.
"""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config as numba_config
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., object])

_ROOT = Path(__file__).resolve().parent.parent
_JITABLE_SOURCES = ("policies/*.py", "simulator/engines/*.py", "simulator/cost/step.py", "simulator/kv.py",
                    "simulator/prefix.py", "simulator/state.py", "simulator/units.py", "simulator/jit.py")


def jitable(function: F) -> F:
    """Mark a function as runnable by the interpreter and by the compiled engine alike.

    Compiled without reference counting (it may not allocate) and inlined by LLVM: docs/architecture.md says why.
    """
    marked: F = register_jitable(_nrt=False, forceinline=True)(function)
    return marked


def source_hash(root: Path = _ROOT) -> str:
    """Hash over the text of every jitable source, the numba version and the package's place (16 hex digits)."""
    digest = hashlib.sha256(f"{numba.__version__} {root}".encode())
    for pattern in _JITABLE_SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def cache_folder() -> Path:
    """Folder of compiled engines: $SERVECAST_CACHE or the user's cache folder, then the source hash."""
    base = os.environ.get("SERVECAST_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "servecast")
    return Path(base) / "compiled" / source_hash()


def compiled(function: F) -> F:
    """Compile with numba and keep the machine code in `cache_folder()`; the global numba setting is restored."""
    settings: Any = numba_config
    njit: Any = numba.njit
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_folder())
    try:
        result: F = njit(cache=True, _nrt=False)(function)
    finally:
        settings.CACHE_DIR = before
    return result
