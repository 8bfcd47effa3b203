"""Executors for a sweep: this process, local worker processes, or a Dask cluster; one interface, `submit`.

Local workers are started fresh (fork server, spawn where there is none), ignore Ctrl-C, which the parent
handles for them, and end themselves when the parent is gone, however it died.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any, ParamSpec, TypeVar

from simulator.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    """Runs a task in this process when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run now; exceptions of the task are kept in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def local_pool(jobs: int) -> Iterator[Executor]:
    """`jobs` worker processes (1: this process). On the way out no worker is left, whatever happened."""
    if jobs == 1:
        yield Inline()
        return
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=_context(), initializer=_start_worker)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
            child.join()
        raise


@contextmanager
def dask_pool(address: str) -> Iterator[tuple[Executor, int, Callable[[], int]]]:
    """Executor on the Dask cluster at `address`, its number of worker threads, and how many there are now.

    A task whose worker dies is run again elsewhere by the scheduler. Raises ConfigError where one is missing.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise ConfigError("--dask needs the package distributed: pip install 'servecast[dask]'") from None
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError(f"--dask {address}: no scheduler answers: {error}") from error
    try:
        def threads() -> int:
            return sum(client.nthreads().values())

        if threads() == 0:
            raise ConfigError(f"--dask {address}: it has no worker; start one: dask worker {address}")
        yield client.get_executor(pure=False, retries=2), threads(), threads
    finally:
        client.close()


def _context() -> Any:
    """Start method of the workers; a fork server has the task's modules loaded before it forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["simulator.sweep.task"])
    return context


def _start_worker() -> None:
    """First thing in a worker: leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
