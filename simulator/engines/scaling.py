"""CONTROL: autoscalers decide how many replicas a pool has.

Two formulas by name, as Kubernetes 1.34 and KEDA 2.18 have them:

- hpa, a metric of the pods: desired = ceil(mean * pods / target), none within the tolerance. Pods without metrics
  (starting, down) count as at the target before scaling down and as idle before scaling up, and never turn the
  direction; pending ones are left out before scaling down (kubernetes pkg/controller/podautoscaler/
  replica_calculator.go, calcPlainMetricReplicas). A metric of the whole, here the time to first token, is
  desired = ceil(metric / target * ready pods) (getUsageRatioReplicaCount).
- keda, an external metric, the sum over the pool and the gateway: desired = ceil(sum / target)
  (GetExternalPerPodMetricReplicas); KEDA itself takes the last replica away, and brings the first one back (keda
  pkg/scaling/executor/scale_scaledobjects.go, RequestScale).

Recommendations then pass the windows and the limits a period of `behavior` (horizontal.go,
stabilizeRecommendationWithBehaviors, convertDesiredReplicasWithBehaviorRate). Values are whole thousandths, as
Kubernetes' quantities are; ratios are exact here where it has doubles.
"""

from typing import Final

from policies.routers import COUNT, START, group_at
from simulator.engines.forecast import foreseen
from simulator.engines.future import event_code, phase_of, push
from simulator.engines.members import (
    ABSENT,
    DOWN,
    DRAINING,
    POLL,
    STARTING,
    SYNC,
    UP,
    order,
    release,
)
from simulator.engines.scaler import Scaler
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import CONTROL
from simulator.state import FINISHED, Column
from simulator.units import NEVER

WAITING_REQUESTS: Final = 0
RUNNING_REQUESTS: Final = 1
REQUESTS: Final = 2
KV: Final = 3
TTFT: Final = 4
NOTHING: Final = 5
METRICS: Final = {"waiting": WAITING_REQUESTS, "running": RUNNING_REQUESTS, "requests": REQUESTS, "kv": KV,
                  "ttft": TTFT}
"""What an autoscaler reads of a replica, or of the pool; NOTHING where it only keeps to a schedule."""

MILLI: Final = 1000
NS_A_MILLI: Final = 1_000_000


@jitable
def sync(world: World, k: int, fronts: Column, counters: Column, tick: int) -> None:
    """Autoscaler k decides."""
    scaling, ctl = world.changes.scaling, world.clients.ctl
    scaler = scaling.scalers[k]
    if scaler.wanted > 0:
        value, serving, recommended = _recommend(world, scaler, fronts, counters, tick)
        if scaler.history > 0:
            recommended = foreseen(scaling, k, recommended)
        recommended = max(recommended, _scheduled(world, k, tick))
        wanted = _limited(world, k, _steadied(world, k, recommended, tick), tick)
        at = k * scaling.ring + scaler.n_past % scaling.ring
        past = scaling.past[at]
        past.tick = tick
        past.recommended = recommended
        past.change = wanted - scaler.wanted
        scaler.n_past += 1
        _note(world, scaler, tick, value, serving, recommended, wanted)
        _become(world, scaler, wanted, fronts, counters, tick)
    if not over(world, fronts, counters, tick):
        push(world.clients.future, ctl, tick + scaler.sync, event_code(CONTROL, k, SYNC))


@jitable
def poll(world: World, k: int, fronts: Column, counters: Column, tick: int) -> None:
    """KEDA looks whether there is anything to do: the last replica goes after the cool-down, the first one comes."""
    scaler = world.changes.scaling.scalers[k]
    value, serving = _total(world, scaler, fronts, counters, tick)
    if value > scaler.activation or _scheduled(world, k, tick) >= 0:
        scaler.active = tick
        if scaler.wanted == 0:
            _note(world, scaler, tick, value, serving, 1, 1)
            _become(world, scaler, 1, fronts, counters, tick)
    elif scaler.wanted > 0 and scaler.low == 0 and tick - scaler.active > scaler.cool_down:
        _note(world, scaler, tick, value, serving, 0, 0)
        _become(world, scaler, 0, fronts, counters, tick)
    if not over(world, fronts, counters, tick):
        push(world.clients.future, world.clients.ctl, tick + scaler.polling, event_code(CONTROL, k, POLL))


@jitable
def _scheduled(world: World, k: int, tick: int) -> int:
    """Replicas that autoscaler k's schedule asks for now, -1 = it asks for nothing."""
    shifts = world.changes.scaling.shifts
    most = -1
    for h in range(len(shifts)):
        if shifts[h].scaler == k and shifts[h].begin <= tick % shifts[h].every < shifts[h].end:
            most = max(most, int(shifts[h].replicas))
    return most


@jitable
def _recommend(world: World, scaler: Scaler, fronts: Column, counters: Column, tick: int) -> tuple[int, int, int]:
    """Metric [1/1000], replicas that serve, and how many the formula asks for."""
    value, serving = _total(world, scaler, fronts, counters, tick)
    if scaler.metric == NOTHING:
        return -1, serving, 0
    if scaler.metric == TTFT:
        if value < 0:  # nobody got a first token: no such metric; KEDA reads zero
            return value, serving, 0 if scaler.keda == 1 else scaler.wanted
        return value, serving, scaler.wanted if _near(scaler, value, 1) else _up(value * serving, scaler.target)
    if scaler.keda == 1:
        return value, serving, scaler.wanted if _near(scaler, value, scaler.wanted) else _up(value, scaler.target)
    if serving == 0:
        return -1, 0, scaler.wanted
    mean = value // serving
    return mean, serving, of_pods(scaler, value, mean, serving, fronts, tick)


@jitable
def of_pods(scaler: Scaler, value: int, mean: int, serving: int, fronts: Column, tick: int) -> int:
    """Replicas by the formula for metrics of pods, of which `serving` have one."""
    pending = scaler.wanted - scaler.members
    missing = 0
    for r in range(scaler.first, scaler.first + scaler.count):
        front = fronts[r]
        if front.state == STARTING and tick - front.since < scaler.pending:
            pending += 1
        elif front.state == STARTING or front.state == DOWN or (front.state == DRAINING and front.rest < NEVER):
            missing += 1
    more = mean > scaler.target
    if missing == 0 and not (more and pending > 0):
        return scaler.wanted if _near(scaler, mean, 1) else _up(mean * serving, scaler.target)
    pods = serving + missing
    if mean < scaler.target:
        value += missing * scaler.target
    elif more:
        pods += pending
    again = value // pods
    if _near(scaler, again, 1) or (more and again < scaler.target) or (mean < scaler.target and again > scaler.target):
        return scaler.wanted
    found = _up(again * pods, scaler.target)
    wrong = found > scaler.wanted if again < scaler.target else found < scaler.wanted
    return scaler.wanted if wrong else found


@jitable
def _near(scaler: Scaler, value: int, share: int) -> bool:
    """Whether a metric is within the tolerance of `share` times the target."""
    target = scaler.target * share
    return abs(value - target) * MILLI <= scaler.tolerance * target


@jitable
def _up(above: int, below: int) -> int:
    """above / below, rounded up."""
    return -(-above // below)


@jitable
def _total(world: World, scaler: Scaler, fronts: Column, counters: Column, tick: int) -> tuple[int, int]:
    """The metric [1/1000], summed over the replicas that serve (of the time to first token the mean, -1 = none), with
    what waits at the gateway where KEDA reads it; and how many serve."""
    serving, total = 0, 0
    for r in range(scaler.first, scaler.first + scaler.count):
        if fronts[r].state == UP:
            serving += 1
            total += _reading(scaler.metric, fronts[r].blocks, counters[r])
    if scaler.metric == TTFT:
        return _mean_ttft(world, scaler, tick), serving
    if scaler.keda == 1 and (scaler.metric == WAITING_REQUESTS or scaler.metric == REQUESTS):
        total += MILLI * _at_gateway(world, scaler)
    return total, serving


@jitable
def _reading(metric: int, blocks: int, c: Column) -> int:
    """[1/1000] of a replica: vllm:num_requests_waiting, vllm:num_requests_running, both, vllm:kv_cache_usage_perc."""
    running = c.n_running + c.lane
    if metric == WAITING_REQUESTS:
        return MILLI * int(c.n_waiting)
    if metric == RUNNING_REQUESTS:
        return MILLI * int(running)
    if metric == REQUESTS:
        return MILLI * int(c.n_waiting + running)
    if metric == KV:
        return MILLI * int(blocks - c.free_blocks) // int(blocks)
    return 0


@jitable
def _at_gateway(world: World, scaler: Scaler) -> int:
    """Requests for this pool that wait for a replica in service."""
    found, i = 0, world.clients.ctl.parked
    roster = world.changes.roster
    while i >= 0:
        at = group_at(world.req, i)
        for j in range(roster[at + START], roster[at + START] + roster[at + COUNT]):
            if roster[j] == scaler.first:
                found += 1
        i = world.req.next[i]
    return found


@jitable
def _mean_ttft(world: World, scaler: Scaler, tick: int) -> int:
    """[ms] mean time to first token, of those that clients of the pool got in the window; -1 = nobody did."""
    req, total, count = world.req, 0, 0
    end = len(req.arrival) if len(world.clients.talks.follows) > 0 else world.clients.ctl.next
    past = True
    for i in range(scaler.done, end):
        old = req.status[i] >= FINISHED and (req.first[i] == NEVER or req.first[i] <= tick - scaler.ttft_window)
        past = past and old
        if past:
            scaler.done = i + 1
        if old or req.first[i] > tick or req.first[i] <= tick - scaler.ttft_window:
            continue
        r = req.source[i] if len(req.source) > 0 and req.source[i] >= 0 else req.replica[i]
        if scaler.first <= r < scaler.first + scaler.count:
            total += req.first[i] - req.arrival[i]
            count += 1
    return int(total // count // NS_A_MILLI) if count > 0 else -1


@jitable
def _steadied(world: World, k: int, recommended: int, tick: int) -> int:
    """Replicas after the windows: no more than the least, no fewer than the most recommended in them."""
    scaling = world.changes.scaling
    scaler = scaling.scalers[k]
    up, down = recommended, recommended
    for j in range(min(scaler.n_past, scaling.ring)):
        past = scaling.past[k * scaling.ring + j]
        if past.tick > tick - scaler.up_window:
            up = min(up, past.recommended)
        if past.tick > tick - scaler.down_window:
            down = max(down, past.recommended)
    return min(max(scaler.wanted, up), down)


@jitable
def _limited(world: World, k: int, asked: int, tick: int) -> int:
    """Replicas after the limits a period, the least and the most there may be."""
    scaling = world.changes.scaling
    scaler = scaling.scalers[k]
    least, now = max(1, scaler.low), scaler.wanted
    if asked > now:
        begin = now - _changed(world, k, scaler.up_period, tick)
        limit = max(begin + scaler.up_pods, _up(begin * (100 + scaler.up_percent), 100))
        return max(least, min(asked, max(now, limit), scaler.count))
    if asked < now:
        begin = now - _changed(world, k, scaler.down_period, tick)
        limit = min(begin - scaler.down_pods, begin * (100 - scaler.down_percent) // 100)
        asked = max(asked, min(now, limit))
    return max(least, min(asked, scaler.count))


@jitable
def _changed(world: World, k: int, period: int, tick: int) -> int:
    """Replicas added, less those taken away, in the last `period` ns."""
    scaling = world.changes.scaling
    total = 0
    for j in range(min(scaling.scalers[k].n_past, scaling.ring)):
        past = scaling.past[k * scaling.ring + j]
        if past.tick > tick - period:
            total += past.change
    return int(total)


@jitable
def _note(world: World, scaler: Scaler, tick: int, value: int, serving: int, recommended: int, wanted: int) -> None:
    """Keep a decision for the report."""
    ctl = world.clients.ctl
    row = world.changes.fleet[ctl.fleet_rows]
    row.tick = tick
    row.pool = scaler.pool
    row.replica = -1
    row.state = serving
    row.metric = value
    row.recommended = recommended
    row.wanted = wanted
    ctl.fleet_rows += 1


@jitable
def _become(world: World, scaler: Scaler, wanted: int, fronts: Column, counters: Column, tick: int) -> None:
    """Order or release replicas until there are as many as wanted, or no place for more."""
    changes, clients = world.changes, world.clients
    scaler.wanted = wanted
    while scaler.members > wanted:
        r = _first_to_go(scaler, fronts)
        scaler.members -= 1
        release(changes, clients, fronts[r], counters[r], r, tick)
    r = scaler.first
    while scaler.members < wanted and r < scaler.first + scaler.count:
        if fronts[r].state == ABSENT:
            order(changes, clients, scaler, fronts[r], r, tick)
        r += 1


@jitable
def _first_to_go(scaler: Scaler, fronts: Column) -> int:
    """As a ReplicaSet chooses: not yet ready ones first, then who is ready for the shortest time (controller_utils.go,
    ActivePodsWithRanks; it compares these times by order of magnitude only)."""
    best, found = -1, False
    for r in range(scaler.first, scaler.first + scaler.count):
        state = fronts[r].state
        if state == ABSENT or (state == DRAINING and fronts[r].rest == NEVER):
            continue
        if not found or (_rank(state), fronts[r].since) >= (_rank(fronts[best].state), fronts[best].since):
            best, found = r, True
    return best


@jitable
def _rank(state: int) -> int:
    """Larger goes first."""
    if state == STARTING:
        return 3
    if state == DOWN:
        return 2
    return 1 if state == DRAINING else 0


@jitable
def over(world: World, fronts: Column, counters: Column, tick: int) -> bool:
    """True when nothing will happen but the autoscalers' own looks: they end."""
    req, clients = world.req, world.clients
    ctl = clients.ctl
    if ctl.next < len(req.arrival) or ctl.parked >= 0:
        return False
    for j in range(ctl.n_future):
        if phase_of(clients.future.code[j]) != CONTROL:
            return False
    outstanding, busy = 0, False
    for r in range(len(fronts)):
        outstanding += fronts[r].outstanding
        busy = busy or counters[r].n_flight > 0 or counters[r].wake < NEVER or counters[r].last_output == tick
        busy = busy or fronts[r].hung < NEVER  # a health check will find it
    if outstanding == 0:
        return True
    ctl.still = 0 if busy else ctl.still + 1
    return bool(ctl.still > 4 * len(world.changes.scaling.scalers))
