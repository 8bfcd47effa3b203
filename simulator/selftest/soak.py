"""As many seeds as time allows, over worker processes: a crash or a hang of one is a finding, not the end."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from policies.registry import POLICIES
from simulator.selftest.cases import Case, Uniform, some_case
from simulator.selftest.file import case_text
from simulator.selftest.shrink import shrunk
from simulator.selftest.trial import case_of, faults, with_simpy

HANG_S: Final = 300.0
"""A case that takes longer does not end; so does compiling one engine that takes longer."""
BATCH: Final = 100
"""Seeds between two words of a worker."""


@dataclass
class Finding:
    """A seed that fails, what fails, and the smallest such case as YAML."""

    seed: int
    faults: list[str]
    text: str


@dataclass
class Soaked:
    """What was run and found."""

    compiled: int = 0
    """Cases run with and without leaps, invariants checked."""
    simpy: int = 0
    """Of them run on SimPy too."""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    seed: Any
    heard: float


def soak(start: int, most: int | None, seconds: float, jobs: int, told: Callable[[Soaked], None] | None = None,
         findings: int = 10) -> Soaked:
    """Try the seeds start, start + 1, ... until `most` are tried, `seconds` are over or `findings` are found."""
    context = multiprocessing.get_context("spawn")
    begun, soaked = time.monotonic(), Soaked()
    share = [None if most is None else len(range(k, most, jobs)) for k in range(jobs)]
    workers = [_started(context, start + k, jobs, share[k]) for k in range(jobs) if share[k] != 0]
    try:
        while workers and len(soaked.findings) < findings and time.monotonic() < begun + seconds:
            ready = wait([each.pipe for each in workers], timeout=1.0)
            for worker in list(workers):
                if worker.pipe in ready:
                    _hear(worker, workers, soaked)
                elif time.monotonic() - worker.heard > HANG_S:
                    _lost(worker, f"does not end in {HANG_S:.0f} s", workers, soaked)
            soaked.seconds = time.monotonic() - begun
            if told:
                told(soaked)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
    return soaked


def _hear(worker: _Worker, workers: list[_Worker], soaked: Soaked) -> None:
    try:
        word = worker.pipe.recv()
    except EOFError:
        worker.process.join()
        _lost(worker, f"the process ended with {worker.process.exitcode}", workers, soaked)
        return
    worker.heard = time.monotonic()
    if word is None:
        workers.remove(worker)
        worker.process.join()
    elif isinstance(word, Finding):
        soaked.findings.append(word)
    else:
        soaked.compiled += word[0]
        soaked.simpy += word[1]


def _lost(worker: _Worker, why: str, workers: list[_Worker], soaked: Soaked) -> None:
    """A worker that hangs or has crashed: its case is a finding, unshrunk; the other workers go on."""
    worker.process.kill()
    worker.process.join()
    workers.remove(worker)
    seed = int(worker.seed.value)
    soaked.findings.append(Finding(seed, [why], case_text(case_of(seed))))


def _started(context: Any, first: int, step: int, count: int | None) -> _Worker:
    ours, theirs = context.Pipe(duplex=False)
    seed = context.Value("q", first)
    process = context.Process(target=_work, args=(theirs, seed, first, step, count), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, seed, time.monotonic())


def _work(pipe: Connection, current: Any, first: int, step: int, count: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    for policy in POLICIES:  # compiles where that has not been done
        faults(some_case(Uniform(0), {"policy": policy}), simpy=False)
        pipe.send((0, 0))
    gc.freeze()  # the compiler's objects need not be searched again
    done = 0
    while os.getppid() == parent and (count is None or done < count):
        size = BATCH if count is None else min(BATCH, count - done)
        seeds = range(first + done * step, first + (done + size) * step, step)
        for seed in seeds:
            current.value = seed
            wrong = faults(case_of(seed), with_simpy(seed))
            if wrong:
                pipe.send(finding(seed, wrong))
        pipe.send((size, sum(map(with_simpy, seeds))))
        done += size
    pipe.send(None)


def finding(seed: int, wrong: list[str]) -> Finding:
    """The smallest case found that fails like this seed."""
    small = shrunk(case_of(seed), fails)
    return Finding(seed, faults(small) or wrong, case_text(small))


def fails(case: Case) -> bool:
    """Whether anything is wrong with the case."""
    return bool(faults(case))
