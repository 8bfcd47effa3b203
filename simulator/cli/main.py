"""The command `servecast`. Each command lives in a module with `register(app)`; only the one asked for loads.

Exit codes: 0 done; 1 the machine said no (disk full, no permission) or a bug (with traceback); 2 the input
is not accepted, one line on stderr (on a terminal wrapped at words) says why; 130 Ctrl-C; 143 terminated. No
output is ever half-written.
"""

import atexit
import errno
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, Any, Final

import typer

from simulator.cli.common import log_as_notes, width_of, wrapped
from simulator.errors import ServecastError
from simulator.version import __version__

COMMANDS: Final = {
    "run": "simulator.cli.run",
    "compare": "simulator.cli.compare",
    "toy": "simulator.cli.toy",
    "trace": "simulator.cli.trace",
    "load": "simulator.cli.load",
    "capacity": "simulator.cli.load",
    "plan": "simulator.cli.plan",
    "whatif": "simulator.cli.plan",
    "ui": "simulator.cli.plan",
    "sweep": "simulator.cli.sweep",
    "bench": "simulator.cli.bench",
    "selftest": "simulator.cli.selftest",
    "kv": "simulator.cli.kv",
    "calibrate": "calibration.cli",
    "validate": "calibration.cli",
    "scenarios": "simulator.cli.lists",
    "policies": "simulator.cli.lists",
    "hardware": "simulator.cli.lists",
    "models": "simulator.cli.lists",
    "engines": "simulator.cli.lists",
    "schema": "simulator.cli.lists",
}
"""Command -> module whose `register(app)` adds it, in the order of `servecast --help`."""
_LONGEST: Final = 2_000
"""Characters of a message: input it repeats is cut."""
_NAMED_WRONGLY: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the system that say: the path given is not a file or folder. They count as input."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        atexit.register(gc.freeze)  # spares the end of the process a search through all that it has loaded
    before = _on_termination(_terminated)
    try:
        with log_as_notes():
            return _guarded(given)
    finally:
        _on_termination(before)


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """The application with the command that `arguments` ask for, or with all of them."""
    app = typer.Typer(name="servecast", add_completion=False, pretty_exceptions_enable=False,
                      context_settings={"help_option_names": ["-h", "--help"]})
    app.callback()(_options)
    wanted = next((word for word in arguments if not word.startswith("-")), "")
    for module in dict.fromkeys([COMMANDS[wanted]] if wanted in COMMANDS else COMMANDS.values()):
        if find_spec(module) is not None:
            import_module(module).register(app)
    return app


def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True,
                                                   callback=lambda on: _print_version(on))] = False) -> None:
    """Simulate LLM serving: replay a trace under a policy on a model and a GPU, and plan capacity."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"servecast {__version__}")
        raise typer.Exit()


def _guarded(arguments: list[str]) -> int:
    try:
        code = build(arguments)(args=arguments, prog_name="servecast", standalone_mode=False)
        return _say("interrupted", code) if code == 130 else code if isinstance(code, int) else 0
    except ServecastError as error:
        return _say(str(error), 2)
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or error}", 2 if error.errno in _NAMED_WRONGLY else 1)
    except MemoryError:
        return _say("out of memory; a shorter trace or --no-log needs less", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", 130)
    except Exception as error:  # the command line parser's own errors have no stable class across versions
        text = getattr(error, "format_message", None)
        if text is None:
            raise
        return _say(f"servecast: {text() or 'missing command'} (see servecast --help)", 2)


def _say(text: str, code: int) -> int:
    """One line on stderr, wrapped only on a terminal; letters that would break or colour it are escaped."""
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}... ({len(text) - _LONGEST:,} characters left out) ...{text[-half:]}"
    letters = (each if each.isprintable() else " " if each == "\n" else repr(each)[1:-1] for each in text)
    line = "".join(letters)
    print(wrapped(line, width_of(sys.stderr)) if sys.stderr.isatty() else line, file=sys.stderr)
    return code


def _closed_pipe() -> int:
    """The reader of our output has left (`servecast policies | head`): end quietly."""
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115  (python flushes stdout once more at exit)
    return 0


def _terminated(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds like Ctrl-C, so that temporary folders are removed."""
    raise SystemExit(128 + number)


def _on_termination(handler: Any) -> Callable[..., Any] | int | None:
    """Set the SIGTERM handler and return the one before; outside the main thread nothing changes."""
    try:
        return signal.signal(signal.SIGTERM, handler)
    except ValueError:
        return handler  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
