"""A simulation ready to run: columns, limits, cost, load and the accumulators an engine fills."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from policies.registry import ASKS
from policies.signals import Signals
from simulator.cost.step import Cost
from simulator.engines.clients import OPEN, Clients, Habits, Talks
from simulator.engines.future import Future
from simulator.engines.plans import Plans, changes_of, records_of
from simulator.engines.pools import Pool, pool_of, routing_of
from simulator.engines.world import Acceptance, Changes, Links
from simulator.errors import ConfigError, TraceError
from simulator.memory import zeros_as_used
from simulator.records import (
    Control,
    Counters,
    FleetRow,
    Front,
    HostBlocks,
    LogRow,
    Node,
    Seat,
    StepInFlight,
    Totals,
    dtype_of,
    empty_replica_counters,
)
from simulator.state import (
    CALENDAR,
    COUNT_FIELDS,
    GAPS,
    ITL_BINS,
    LARGEST_COUNT,
    NOBODY,
    VACANT_BITS,
    Column,
    Limits,
    Prefix,
    Replica,
    Requests,
)
from simulator.units import NEVER, NS_PER_S
from simulator.windows import with_bits

PEAKS: Final = ("wall", "peak_running", "peak_waiting", "peak_blocks")
"""Totals that bound the sums over time."""
CACHE_COLUMNS = ("chain_end", "found", "known", "settled", "own")
"""Columns of the requests that only a prefix cache needs."""
HOST_COLUMNS = ("fetched", "ready")
"""Those that only host memory behind it needs."""
PATIENCE_COLUMNS = ("sent", "attempts", "watched")
"""Those that only clients who give up or try again need."""
LOSS_COLUMNS = ("losses", "lost_at")
"""Those that only a gateway needs which submits again a limited number of times."""
HANDOVER_COLUMNS = ("whole", "source", "held", "carried", "landed")
"""Columns of the requests that only hand-overs need."""
LEVEL_COLUMNS, ORDER_COLUMNS = ("level", "used", "ran"), ("key", "child")
"""Columns of the requests that only a policy with levels, or a waiting queue in order of a key, needs."""
NOTHING: Final[Mapping[str, Column]] = MappingProxyType({})
ID_COLUMNS = tuple(name for name in Replica._fields if name not in ("steps", "seats", "stats", "front", "prefix", "c"))
"""Columns of a replica that hold whole numbers, not records."""


def talks_of(requests: int) -> Talks:
    """Columns for conversations of `requests` requests, in which so far each stands alone."""
    n = np.zeros(requests, dtype=np.int64)
    return Talks(n, n - 1, n.copy())


@dataclass
class Job:
    """Everything an engine reads and writes. `reps` is a list of Replica (SimPy) or one Replica whose columns
    have a leading replica axis (compiled engine); likewise stats, aux. `rows_time` has a row a pool."""

    req: Requests
    reps: Any
    pools: tuple[Pool, ...]
    itl: Any
    rows_time: Any
    ctl: Any
    frontends: Any
    log: Any
    future: Future
    routing: Any
    router: int = 0
    load: int = OPEN
    width: int = 0
    until: int = NEVER
    talks: Talks = field(default_factory=lambda: talks_of(0))
    habits: Habits = field(default_factory=Habits)
    links: Links = field(default_factory=lambda: links_of(()))
    acceptance: Acceptance = field(default_factory=lambda: no_acceptance(True))
    changes: Changes = field(default_factory=lambda: changes_of(Plans()))
    signals: Signals | None = None   # None: the router sees all (engines.signals)

    def clients(self) -> Clients:
        """Who submits the requests."""
        waits = len(self.talks.after) > 0 or self.habits.max_in_flight > 0
        live = self.load == OPEN and (waits or self.habits.attempts > 1)
        coupled = self.load != OPEN or waits or len(self.links.free) > 0 or len(self.changes.roster) > 0
        return Clients(self.ctl, self.frontends, self.future, self.talks, self.habits, self.load, self.width, int(live),
                       int(coupled))

    @property
    def lim(self) -> Limits:
        """Limits of the first pool."""
        return self.pools[0].lim

    @property
    def cost(self) -> Cost:
        """Step times of the first pool."""
        return self.pools[0].cost

    @property
    def replicas(self) -> int:
        """Replicas of all pools."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def stats(self) -> npt.NDArray[np.void]:
        """(R,) records.Totals; for array jobs."""
        totals: npt.NDArray[np.void] = self.reps.stats
        return totals

    @property
    def fleet(self) -> npt.NDArray[np.void]:
        """What happened to the fleet, (rows,) records.FleetRow; for array jobs."""
        rows: npt.NDArray[np.void] = self.changes.fleet[: self.ctl["fleet_rows"][0]]
        return rows

    @property
    def logged(self) -> npt.NDArray[np.void]:
        """The rows of the step log that were written, in that order; for array jobs."""
        rows: npt.NDArray[np.void] = self.log[: self.ctl["log_rows"][0]]
        return rows


def no_acceptance(arrays: bool) -> Acceptance:
    """Where no drafts are made, for an array job or a list job."""
    return Acceptance(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)) if arrays else Acceptance([], [])


def request_columns(arrival: Column, prompt: Column, output: Column, limit: Column, cached: Column,
                    pick: Column, chain_ends: Column | None = None, group: Column = (),
                    asks: Mapping[str, Column] = NOTHING, ordered: bool = False,
                    hand_over: bool = False, patience: bool = False, swap: bool = False, offload: bool = False,
                    losses: bool = False) -> Requests:
    """Requests as numpy columns, shape (N,); inputs are copied, counts become int32. Raises TraceError beyond it.

    `chain_ends`: with a prefix cache, where each request's shared blocks end (workload.shared); the columns of the
    cache are empty without. `group`: index of the pools each may go to, empty where there is one group. `asks`: those
    of registry.ASKS that the policy needs, the others are empty. `ordered`: the waiting queue is in order of a key.
    `hand_over`: replicas may hand requests over to others. `patience`: clients may give up or try again. `swap`:
    preemption is by swap. `offload`: there is host memory behind the prefix cache. `losses`: the gateway submits again
    what was lost with a replica a limited number of times.
    """
    n = len(arrival)
    given = {"arrival": arrival, "prompt": prompt, "output": output, "limit": limit, "cached": cached, **asks}
    absent = {*(name for name in ASKS if name not in asks), *(ORDER_COLUMNS if not ordered else ()),
              *(CACHE_COLUMNS if chain_ends is None else ()), *(HANDOVER_COLUMNS if not hand_over else ()),
              *(PATIENCE_COLUMNS if not patience else ()), *(("swapped",) if not swap else ()),
              *(LEVEL_COLUMNS if "joins" not in asks else ()), *(HOST_COLUMNS if not offload else ()),
              *(LOSS_COLUMNS if not losses else ())}
    for name in COUNT_FIELDS:
        if name in given and n and not 0 <= np.min(given[name]) <= np.max(given[name]) <= LARGEST_COUNT:
            raise TraceError(f"{name} must be 0..{LARGEST_COUNT} tokens, got {np.min(given[name])} to "
                             f"{np.max(given[name])}")
    columns: dict[str, Any] = {}
    for name in Requests._fields:
        dtype = np.int32 if name in COUNT_FIELDS else np.int64
        if name in given:
            columns[name] = np.array(given[name], dtype=dtype)
        elif name in ("pick", "group"):
            columns[name] = np.array(pick if name == "pick" else group, dtype=dtype)
        elif name in ("drafts", "due") or name in absent:
            columns[name] = np.zeros(0, dtype=dtype)
        elif name == "chain_end":
            columns[name] = np.array(chain_ends, dtype=np.int64)
        else:
            start = {"queued": NEVER, "scheduled": NEVER, "first": NEVER, "last": NEVER, "slot": -1, "replica": -1,
                     "next": -1, "own": -1, "child": -1, "whole": limit, "source": -1, "landed": NEVER,
                     "sent": NEVER, "lost_at": NEVER}.get(name, 0)
            columns[name] = np.full(n, start, dtype=dtype)
    return Requests(**columns)


def array_job(req: Requests, lim: Limits, cost: Cost, replicas: int, log: bool, chain: Column = (),
              others: Sequence[Pool] = (), groups: Sequence[Sequence[int]] = (), aux: int = 1, speed: int = 1) -> Job:
    """A job on numpy columns, for the compiled engine.

    `chain` are the numbers of shared blocks (workload.shared), `others` the pools beside the first, `groups` the pools
    that requests of each group may use; `aux` is how many numbers the policy keeps, `speed` the first pool's.
    """
    pools = tuple(pool._replace(lim=with_bits(pool.lim)) for pool in (Pool(lim, cost, replicas, speed), *others))
    of, total = pool_of(pools), sum(pool.replicas for pool in pools)
    most = max(pool.lim.max_num_seqs for pool in pools)
    s = slots_held(pools, len(req.arrival))
    depth = max(pool.lim.schedule_ahead for pool in pools) + 1
    drafts = any(pool.lim.draft_tokens > 0 for pool in pools)
    gains = (depth, s) if drafts else (1, 1)
    largest = max(pool.lim.block_size for pool in pools)

    def table(*shape: int, fill: int = 0) -> Any:
        return np.full(shape, fill, dtype=np.int64) if fill else zeros_as_used(shape, np.int64)

    def ids(*shape: int) -> Any:  # unsigned: numba then skips the test for a negative index
        return np.full(shape, NOBODY, dtype=np.uint32)

    def records(kind: type, *shape: int) -> Any:
        return zeros_as_used(shape, dtype_of(kind))

    if drafts:
        req = req._replace(drafts=np.zeros(len(req.arrival), dtype=np.int32))
    stages = max(max(pool.lim.stages for pool in pools), 1)
    if stages > 1:
        req = req._replace(due=np.zeros(len(req.arrival), dtype=np.int32))
    reps: Any = Replica(
        running=ids(total, s), slots=table(total, s, fill=-1), vacant=np.tile(_all_vacant(s), (total, 1)),
        seats=records(Seat, total, s), extents=ids(total, s), ended=ids(total, s), batch=ids(total, s),
        tokens=table(total, s), flight=ids(total, depth, s), gains=table(total, *gains),
        steps=records(StepInFlight, total, depth), stage_gpu=table(total, stages), stage_cpu=table(total, stages),
        phase=table(total, largest), frees=table(total, largest), calendar=table(total, CALENDAR, fill=-1),
        gap_step=table(total, GAPS), gap_ns=table(total, GAPS), aux=table(total, max(aux, 1)),
        stats=records(Totals, total), front=records_of([_front(p, pools[p]) for p in of], Front),
        prefix=_prefix(req, pools, np.asarray(chain, dtype=np.int64)),
        c=records_of([empty_replica_counters(pools[p].lim.num_blocks) for p in of], Counters),
    )  # fmt: skip
    return Job(req, reps, pools, table(ITL_BINS), table(len(pools), most + 1), records(Control, 1), table(total),
               records(LogRow, 4096 if log else 0), future_of(len(req.arrival)), routing_of(pools, groups))


def _front(p: int, pool: Pool) -> Front:
    return Front(pool=p, speed=pool.speed, blocks=pool.lim.num_blocks)


def slots_held(pools: Sequence[Pool], requests: int) -> int:
    """Slots of a replica that can be held at a time: no more than there are requests, and each holds a block that it
    shares with nobody."""
    return max(min(pool.lim.max_num_seqs, pool.lim.num_blocks, max(1, requests)) for pool in pools)


def _all_vacant(slots: int) -> npt.NDArray[np.int64]:
    """Replica.vacant with every slot free."""
    firsts = range(0, slots, VACANT_BITS)
    return np.array([(1 << min(VACANT_BITS, slots - first)) - 1 for first in firsts], dtype=np.int64)


def future_of(requests: int) -> Future:
    """An empty heap with room for what can be pending: a client's turn, a submission or a
    hand-over, and a deadline a request. Zeros take no memory until used."""
    return Future(np.zeros(3 * requests, dtype=np.int64), np.zeros(3 * requests, dtype=np.int64))


def links_of(token_fp: Sequence[int], latency: int = 0, groups: int = 0, arrays: bool = True,
             layers: int = 0) -> Links:
    """Links out of the replicas, given [2^-LINK_BITS ns] a token of each; columns are lists for the SimPy engine."""
    free, rates = np.zeros(len(token_fp), dtype=np.int64), np.array(token_fp, dtype=np.int64)
    if not arrays:
        return Links(free.tolist(), rates.tolist(), latency, groups, layers)
    return Links(free, rates, latency, groups, layers)


NODE_BYTES: Final = 2**33
"""[bytes] up to here the prefix caches of a fleet have a node for each of their blocks."""
COMPUTED_AGAIN: Final = 8
"""Beyond that, how often the blocks of a request may become known."""


class _AsUsed(list[Any]):
    """Records of a list, made when they are first asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def __getitem__(self, at: Any) -> Any:
        return super(_AsUsed, self.upto(at + 1)).__getitem__(at)

    def upto(self, length: int) -> "_AsUsed":
        """The list, of so many records at least."""
        while len(self) < length:
            self.append(self.make())
        return self


def _prefix(req: Requests, pools: Sequence[Pool], chain: npt.NDArray[np.int64]) -> Prefix:
    """An empty prefix cache a replica. Every node is a block at least, so there are never more nodes than blocks; the
    first is none. Requests that are computed once have no more than their shared blocks and a run of private ones
    between two of them; each time one is computed again, preempted or sent again, its last blocks become known once
    more. Large tables, which only what is written of takes memory, hold that a few times over."""
    blocks = max((pool.lim.num_blocks for pool in pools if pool.lim.prefix), default=0)
    room = NODE_BYTES // dtype_of(Node).itemsize // sum(pool.replicas for pool in pools)
    most = min(blocks, max(room, COMPUTED_AGAIN * (2 * chain.size + len(req.arrival)))) + 2
    host = any(pool.lim.offload_blocks for pool in pools)
    replicas, kinds = sum(pool.replicas for pool in pools), int(chain.max(initial=0)) + 1
    return Prefix(chain, np.full(chain.size, -1, dtype=np.int64), zeros_as_used((replicas, kinds), np.int64),
                  zeros_as_used((replicas, most), dtype_of(Node)),
                  zeros_as_used((replicas, 2 * kinds + 1 if host else 0), dtype_of(HostBlocks)))


def check_sums(job: Job) -> None:
    """Raise ConfigError when a sum over the whole run could have left int64; called when a run is over.

    Steps are times of at most `reach.LAST_TICK` in all, so `wall` itself is right; what it is multiplied with in the
    other sums was never more than the peaks.
    """
    stats = job.stats if isinstance(job.reps, Replica) else [rep.stats for rep in job.reps]
    kept = [{name: int(t[name] if isinstance(t, np.void) else getattr(t, name)) for name in PEAKS} for t in stats]
    busy = sum(totals["wall"] for totals in kept)
    for totals, p in zip(kept, pool_of(job.pools), strict=True):
        lim = job.pools[p].lim
        gaps = lim.num_blocks if lim.contiguous else 0
        by_1024 = max(totals["peak_waiting"], totals["peak_blocks"] * lim.block_size, gaps)
        if max(totals["peak_running"] * totals["wall"], by_1024 * (totals["wall"] >> 10), busy) >= 2**63:
            raise ConfigError(
                f"a replica is busy for {totals['wall'] / NS_PER_S / 86400:.3g} days with up to "
                f"{totals['peak_running']} running and {totals['peak_waiting']} waiting requests: sums over time "
                "exceed 2^63; set a shorter horizon_s")


def list_job(req: Requests, lim: Limits, cost: Cost, replicas: int, log: bool, chain: Column = (),
             others: Sequence[Pool] = (), groups: Sequence[Sequence[int]] = (), aux: int = 1, speed: int = 1) -> Job:
    """The same job on plain lists of Python integers, for the SimPy engine."""
    job = array_job(req, lim, cost, replicas, log, chain, others, groups, aux, speed)
    columns = Requests(*(column.tolist() for column in job.req))
    numbers, held = job.reps.prefix.chain.tolist(), job.reps.prefix.held.tolist()
    of = pool_of(job.pools)
    caches = [Prefix(numbers, held, job.reps.prefix.found[r].tolist(), _AsUsed(Node),
                     [HostBlocks() for _ in job.reps.prefix.host[r]])
              for r in range(len(of))]
    reps = [Replica(prefix=caches[r], c=empty_replica_counters(job.pools[p].lim.num_blocks),
                    stats=Totals(), front=_front(p, job.pools[p]), steps=[StepInFlight() for _ in job.reps.steps[r]],
                    seats=[Seat() for _ in job.reps.seats[r]],
                    **{name: getattr(job.reps, name)[r].tolist() for name in ID_COLUMNS}) for r, p in enumerate(of)]
    pools = tuple(pool._replace(cost=_plain(pool.cost)) for pool in job.pools)
    return Job(columns, reps, pools, job.itl.tolist(), job.rows_time.tolist(), Control(), job.frontends.tolist(),
               [] if log else None, Future(*(column.tolist() for column in job.future)), job.routing.tolist(),
               links=links_of((), arrays=False), acceptance=no_acceptance(False),
               changes=changes_of(Plans(), arrays=False))


def _plain(cost: Cost) -> Cost:
    """Step times with Python integers for numbers."""
    fields: Any = (f if isinstance(f, np.ndarray) else int(f) for f in cost)
    return Cost(*fields)


def as_arrays(job: Job) -> Job:
    """A list job with its results as numpy columns (dtypes as in an array job)."""
    req = Requests(*(np.array(column, dtype=np.int32 if name in COUNT_FIELDS else np.int64)
                     for name, column in zip(Requests._fields, job.req, strict=True)))
    ids = {name: np.array([getattr(rep, name) for rep in job.reps], dtype=np.int64) for name in ID_COLUMNS}
    steps = np.array([records_of(rep.steps, StepInFlight) for rep in job.reps])
    nodes = [rep.prefix.nodes.upto(max(len(each.prefix.nodes) for each in job.reps)) for rep in job.reps]
    cache = Prefix(np.array(job.reps[0].prefix.chain), np.array(job.reps[0].prefix.held),
                   np.array([rep.prefix.found for rep in job.reps]),
                   np.array([records_of(each, Node) for each in nodes]),
                   np.array([records_of(rep.prefix.host, HostBlocks) for rep in job.reps]))
    seats = np.array([records_of(rep.seats, Seat) for rep in job.reps])
    reps: Any = Replica(prefix=cache, c=records_of([rep.c for rep in job.reps], Counters), steps=steps,
                        seats=seats, stats=records_of([rep.stats for rep in job.reps], Totals),
                        front=records_of([rep.front for rep in job.reps], Front), **ids)
    numbers: dict[str, Any] = {
        name: np.array(getattr(job, name), dtype=np.int64) for name in ("itl", "rows_time", "frontends")
    }
    changes = job.changes._replace(fleet=records_of(job.changes.fleet, FleetRow))
    return replace(job, req=req, reps=reps, ctl=records_of([job.ctl], Control), log=records_of(job.log or [], LogRow),
                   changes=changes, **numbers)
