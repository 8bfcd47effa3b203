"""One decorator for the code both engines run, and compiled functions whose code on disk cannot go stale.

`@jitable` leaves a plain Python function: the SimPy engine calls it, a debugger steps into it. numba, which takes
long to load, is told of it when something is compiled. numba's own disk cache watches only the file of the
compiled function, so an edit of an inlined policy would run stale machine code, and it trusts whatever lies in its
folder; `simulator.code_cache` keeps the code instead, in a folder named by a hash over every source that can be
inlined.
"""

import functools
import hashlib
import os
import pickle
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar

from simulator.code_cache import CodeCache, cache_home
from simulator.uncollected import uncollected

F = TypeVar("F", bound=Callable[..., object])

_ROOT = Path(__file__).resolve().parent.parent
JITABLE_SOURCES = ("policies/*.py", "simulator/engines/*.py", "simulator/cost/step.py", "simulator/kv.py",
                    "simulator/prefix.py", "simulator/free_queue.py", "simulator/offload.py", "simulator/windows.py",
                    "simulator/records.py", "simulator/state.py", "simulator/units.py", "simulator/jit.py")
waits_for_others = True
"""Whether code that another process is about to make is waited for."""
_waiting: list[Callable[..., object]] = []
"""Functions that numba has not been told of yet."""


def jitable(function: F) -> F:
    """Mark a function as runnable by the interpreter and by the compiled engine alike."""
    _waiting.append(function)
    return function


def is_interpreted() -> bool:
    """Whether numba was told, by its own NUMBA_DISABLE_JIT, to compile nothing."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _numba() -> Any:
    """numba, told of every jitable function so far.

    They are compiled without reference counting (they may not allocate) and inlined by LLVM: docs/architecture.md
    says why.
    """
    with uncollected():
        import numba
        from numba.extending import register_jitable

    _teach_bit_length()
    while _waiting:
        register_jitable(_nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(_waiting.pop())
    return numba


@functools.cache
def _teach_bit_length() -> None:
    """Let compiled code call int.bit_length(), of numbers >= 0, which numba does not know: one machine instruction."""
    from numba import types
    from numba.extending import intrinsic, overload_method

    ir: Any = import_module("llvmlite.ir")

    def emitted(_context: Any, number: Any) -> Any:
        def emit(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return number(number), emit

    leading_zeros: Any = intrinsic(emitted)

    @overload_method(types.Integer, "bit_length")
    def bit_length(number: Any) -> Any:
        bits = number.bitwidth

        def count(number: Any) -> Any:
            return bits - leading_zeros(number)

        return count


def source_hash(root: Path = _ROOT) -> str:
    """Hash over the text of every jitable source, the numba version and the package's place (16 hex digits)."""
    digest = hashlib.sha256(f"{version('numba')} {root}".encode())
    for pattern in JITABLE_SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def machine_hash() -> str:
    """Hash over what makes machine code fit: Python, llvmlite, processor, numba's settings (8 hex digits)."""
    settings = sorted(f"{key}={value}" for key, value in os.environ.items()
                      if key.startswith("NUMBA_") and "CACHE" not in key and "THREAD" not in key)
    parts = [sys.implementation.cache_tag, version("llvmlite"), platform.system(), platform.machine(), _processor()]
    return hashlib.sha256(repr([*parts, *settings]).encode()).hexdigest()[:8]


def _processor() -> str:
    """Names and features of the first processor, as Linux tells them; elsewhere its name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor()
    return "\n".join(line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU ")))


@functools.cache
def _version() -> str:
    return f"{source_hash()}-{machine_hash()}"


def code_cache() -> CodeCache:
    """Where compiled code of these sources on this machine is kept."""
    home = cache_home()
    return CodeCache(home and home / "compiled" / _version())


class Compiled:
    """A function that is compiled for the types of its first call, or loaded when a process has done so before."""

    def __init__(self, function: Callable[..., Any], name: str, allocates: bool) -> None:
        self.name = name
        self._function, self._allocates = function, allocates
        self._dispatcher: Any = None
        self._entries: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call it; the first time for these types that compiles or loads it.

        numba takes 2 ms to type the engine's columns, twice; those that look alike have the same types.
        """
        kinds = tuple(_kinds(arguments))
        entry = self._entries.get(kinds)
        if entry is not None:
            return entry(*arguments)
        if is_interpreted():
            return self._function(*arguments)
        if self._dispatcher is None:
            self._dispatcher = _numba().njit(_nrt=self._allocates)(self._function)
            self._dispatcher._cache = _Files(self.name, self._function)
        self._entries[kinds] = self._compile(arguments)
        return self._entries[kinds](*arguments)

    def _compile(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """The machine code for arguments of these types."""
        types = tuple(self._dispatcher.typeof_pyval(each) for each in arguments)
        if types not in self._dispatcher.overloads:
            with self._dispatcher._cache, signals_kept():
                self._dispatcher.compile(types)
        entry: Callable[..., Any] = self._dispatcher.overloads[types].entry_point
        return entry


def _kinds(arguments: Iterable[Any]) -> Iterator[Any]:
    """What numba's types follow from: classes, and of arrays dtype, dimensions, layout, alignment and writability."""
    for each in arguments:
        flags = getattr(each, "flags", None)
        if flags is not None:
            yield each.dtype, each.ndim, flags.num
        elif isinstance(each, tuple):
            yield type(each)
            yield from _kinds(each)
        else:
            yield type(each)


def compiled(function: Callable[..., Any], name: str, allocates: bool = False) -> Compiled:
    """Compile with numba and keep the machine code under `name` in `code_cache()`.

    `allocates`: it makes lists or arrays, which takes numba's reference counting.
    """
    return Compiled(function, name, allocates)


class _Files:
    """What numba asks of a dispatcher's cache (numba.core.caching._Cache), on top of CodeCache.

    As a context it holds, from the first miss on, a lock that keeps other processes from making the same code.
    """

    cache_path = None

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._made_of = _fingerprint(function)
        self._locks = ExitStack()

    def __enter__(self) -> None:
        self._locks = ExitStack()

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def load_overload(self, sig: Any, target: Any) -> Any:
        """The compile result for a signature, None when it must be made."""
        with uncollected():
            target.refresh()
        found = self._load(sig, target)
        if found is None and waits_for_others and code_cache().writable():
            self._locks.enter_context(code_cache().alone(self.name))
            found = self._load(sig, target)
        return found

    def _load(self, sig: Any, target: Any) -> Any:
        compiler: Any = import_module("numba.core.compiler")
        data = code_cache().load(self.name, self._key(sig, target.codegen()))
        return None if data is None else compiler.CompileResult._rebuild(target, *pickle.loads(data))

    def save_overload(self, sig: Any, made: Any) -> None:
        """Keep a compile result."""
        serialize: Any = import_module("numba.core.serialize")
        if not made.library.has_dynamic_globals:
            code_cache().save(self.name, self._key(sig, made.codegen), serialize.dumps(made._reduce()))

    def _key(self, sig: Any, codegen: Any) -> str:
        return repr((str(sig), codegen.magic_tuple(), self._made_of, code_cache().folder))

    def enable(self) -> None:
        """Part of numba's interface; this cache is always on."""

    disable = flush = enable


def _fingerprint(function: Callable[..., Any]) -> str:
    """Hash over the sources of a function and of all that it captures."""
    digest, todo, seen = hashlib.sha256(), [function], set()
    while todo:
        each = todo.pop()
        if not isinstance(each, FunctionType) or each in seen:
            continue
        seen.add(each)
        digest.update(each.__qualname__.encode() + each.__code__.co_code)
        path = Path(each.__code__.co_filename)
        digest.update(path.read_bytes() if path.is_file() else b"")
        todo += [cell.cell_contents for cell in each.__closure__ or ()]
    return digest.hexdigest()


@contextmanager
def signals_kept() -> Iterator[None]:
    """Ctrl-C and SIGTERM are not lost while LLVM runs.

    It calls back into Python through ctypes, which prints and drops what is raised there: a signal that comes
    inside such a call is sent again a moment later. Only the main thread handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number, handler in before.items():
        signal.signal(number, _not_in_callback(handler))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _not_in_callback(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        above = frame
        while above is not None:
            if above.f_code.co_name.startswith("_raw_object_cache"):  # llvmlite.binding.executionengine
                threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
                return
            above = above.f_back
        handler(number, frame)

    return handle
