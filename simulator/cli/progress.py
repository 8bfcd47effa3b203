"""Progress on stderr: redrawn in place on a terminal, a whole line now and then elsewhere (a pipe, a log file)."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from simulator.cli.common import console, note
from simulator.planning.news import minutes
from simulator.text import several

if TYPE_CHECKING:
    from simulator.planning.news import News, Tell

FIRST_S: Final = 5.0
"""[s] until the first line; what ends sooner says nothing."""
LONGEST_S: Final = 60.0
"""[s] between lines, at most; each pause is half as long again as the one before."""
SILENT_S: Final = 5.0
"""[s] without news after which the latest is said, where it was not yet and a line is due."""
RUNNING: Final = "still running"
FIRST: Final = "the first simulation is still running"
TRUSTED: Final = 0.02
"""Share of the work that must be done, beside the first simulation, before the rest of it is estimated."""


class Watch:
    """Says when another line is due, and how long the rest will take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + FIRST_S
        self._pause = FIRST_S
        self._since: tuple[float, float] | None = None  # when the first simulation was done, and how much was by then
        self._beside = ""

    def due(self) -> bool:
        """Whether it is time for a line; the next one comes later."""
        now = self._clock()
        if now < self._next:
            return False
        self._pause = min(LONGEST_S, 1.5 * self._pause)
        self._next = now + self._pause
        return True

    def left(self, done: float, beside: str = "") -> str:
        """`about 40 s left`, from what the work took since the first call; empty where that says too little.

        To be called once a simulation is done: until then it is mostly the engine that is compiled, which is not work.
        What is `beside` the work is named, and when that is done the estimate begins anew.
        """
        now = self._clock()
        if beside != self._beside:
            self._since, self._beside = None, beside
        began, before = self._since = self._since or (now, done)
        if done - before < TRUSTED or done >= 1:
            return ""
        return f"about {_rough((now - began) * (1 - done) / (done - before))} left{beside and f', and {beside}'}"


class Advance(Protocol):
    """How many are done, and which share of the work that is where they are unlike."""

    def __call__(self, done: int, share: float | None = None) -> None: ...


@contextmanager
def progress_bar(
    title: str, total: int, quiet: bool, before: str = FIRST, engines: Sequence[str] = ()
) -> Iterator["Advance"]:
    """A function to call with how many of `total` are done, and which share of the work that is where they are unlike;
    `before` any is, that is said, or the `engines` that are
    compiled by then ("" = none). Quiet: nothing is shown."""
    compiled = minutes(engines)
    if quiet:
        yield lambda done, share=None: None
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{title}: {compiled}" if compiled else title, total=total)
            yield lambda done, share=None: bar.update(task, completed=done if share is None else share * total,
                                                      description=title if done else None)  # fmt: skip
    else:
        watch = Watch()
        with _lines(watch, f"{title}: {f'{compiled} first' if compiled else before}") as say:
            yield lambda done, share=None: say(f"{title}: {done:,} of {total:,} done",
                                               watch.left(done / max(1, total) if share is None else share))


@contextmanager
def news_of(title: str, quiet: bool) -> "Iterator[Tell | None]":
    """A function to call with the News of a search; quiet: None."""
    if quiet:
        yield None
        return
    watch = Watch()
    if sys.stderr.isatty():
        with console(stderr=True).status(f"{title} ...") as status:
            yield lambda news: status.update(_words(title, news, watch))
    else:
        with _lines(watch, f"{title}: {FIRST}") as say:
            yield lambda news: say(_words(title, news, watch))


@contextmanager
def _lines(watch: Watch, before: str) -> Iterator[Callable[..., None]]:
    """A function that prints a line where one is due and says something new.

    After a silent stretch the latest that was not printed comes, first `before`.
    """
    latest, told, ended = before, time.monotonic(), threading.Event()
    printed = ""

    def print_new() -> None:
        nonlocal printed
        if latest != printed and watch.due():
            printed = latest
            _line(latest)

    def say(*parts: str) -> None:
        nonlocal latest, told
        latest, told = "; ".join(part for part in parts if part), time.monotonic()
        print_new()

    def beat() -> None:
        while not ended.wait(SILENT_S / 5):
            if time.monotonic() - told > SILENT_S:
                print_new()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join()


def _rough(seconds: float) -> str:
    """40 s, 12 min, 3 h: no more digits than an estimate has."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _words(title: str, news: "News", watch: Watch) -> str:
    """`planning: l40s (2 of 4); 96 simulations; about 20 s left; so far: 3 GPUs ...`."""
    counted = [FIRST]
    if news.simulated:
        counted = [several(news.simulated, "simulation"), watch.left(news.done, news.beside)]
    parts = [f"{title}: {news.doing}", *counted]
    return "; ".join([part for part in parts if part] + ([f"so far: {news.known}"] if news.known else []))


def _line(text: str) -> None:
    note(text)
