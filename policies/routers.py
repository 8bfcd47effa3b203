"""Routers: which replica gets the next request. Chosen by code, so that one compiled engine serves them all.

`route` changes nothing: it reads the requests' inputs, what replicas show of themselves (records.Front) and the
router's own numbers, which the engine keeps up to date; ties go to the replica that comes first.

Requests may be for some pools only: those for the same pools are a group, and a router chooses among the group's
members, the replicas of these pools that are in service.

Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001 (power_of_two);
Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018 (session_affinity keeps a
conversation where it began while that replica has at most LOADED / 100 of the mean load; among equal replicas a plain
remainder stands for the hash ring, `home_of`).
"""

from typing import Final

from simulator.jit import jitable
from simulator.records import Front
from simulator.state import Column, Requests

ROUND_ROBIN: Final = 0
RANDOM: Final = 1
LEAST_OUTSTANDING: Final = 2
POWER_OF_TWO: Final = 3
LEAST_KV: Final = 4
LEAST_WORK: Final = 5
SESSION_AFFINITY: Final = 6
PREFIX_AWARE: Final = 7

ROUTERS: Final = {
    "round_robin": ROUND_ROBIN,
    "random": RANDOM,
    "least_outstanding": LEAST_OUTSTANDING,
    "power_of_two": POWER_OF_TWO,
    "least_kv": LEAST_KV,
    "least_work": LEAST_WORK,
    "session_affinity": SESSION_AFFINITY,
    "prefix_aware": PREFIX_AWARE,
}
SUMMARIES: Final = {
    "round_robin": "each in turn",
    "random": "any, with equal chances; what Kubernetes does with a connection a request",
    "least_outstanding": "fewest requests not yet answered",
    "power_of_two": "of two drawn at random the one with fewer requests not yet answered",
    "least_kv": "smallest share of its KV blocks held by running requests",
    "least_work": "fewest tokens, prompt + max_tokens of requests not yet answered, over the pool's speed",
    "session_affinity": "where the conversation began, while that one has at most 125 % of the mean load; "
    "else fewest requests not yet answered",
    "prefix_aware": "most of the prompt in its prefix cache, if over half; else, or where loads are far apart, "
    "fewest requests not yet answered; SGLang's cache-aware rule",
}

DRAWN: Final = (RANDOM, POWER_OF_TWO)
"""Routers that use a random number a request."""
READS_LOAD: Final = (LEAST_OUTSTANDING, POWER_OF_TWO, LEAST_WORK, SESSION_AFFINITY)
"""Routers that read what changes only when a request arrives or ends."""

LOADED: Final = 125
"""[%] of the mean load up to which session_affinity stays."""

ROUTED: Final = 0
"""aux: requests routed so far."""
LOOKED: Final = 1
"""aux: [tick] when it last looked at the replicas (policies.signals)."""
GROUPS: Final = 2
"""aux: where the first group's three numbers are: START of its members in aux, their COUNT, requests routed (TURN)."""
START: Final = 0
COUNT: Final = 1
TURN: Final = 2
WIDTH: Final = 3


@jitable
def group_at(req: Requests, i: int) -> int:
    """Where the numbers of request i's group are in aux."""
    return GROUPS + WIDTH * req.group[i] if len(req.group) > 0 else GROUPS


@jitable
def count_routed(req: Requests, i: int, aux: Column) -> None:
    """Request i has been routed."""
    aux[ROUTED] += 1
    count_turn(req, i, aux)


@jitable
def count_turn(req: Requests, i: int, aux: Column) -> None:
    """It was the turn of request i's group."""
    aux[group_at(req, i) + TURN] += 1


@jitable
def route(code: int, req: Requests, fronts: Column, i: int, aux: Column, roster: Column) -> int:
    """Replica for request i; fronts[r] is the records.Front of replica r, req.pick[i] a non-negative random number,
    `roster` is aux as it is with all replicas in service, empty where they always are."""
    at = group_at(req, i)
    start = aux[at + START]
    n = aux[at + COUNT]
    if code == ROUND_ROBIN:
        return aux[start + aux[at + TURN] % n]
    if code == RANDOM:
        return aux[start + req.pick[i] % n]
    if code == POWER_OF_TWO:
        return _better_of_two(req.pick[i], fronts, start, n, aux)
    if code == SESSION_AFFINITY:
        home = home_of(req, i, aux, roster)
        total = 0
        for k in range(start, start + n):
            total += fronts[aux[k]].outstanding
        if 100 * n * (fronts[home].outstanding + 1) <= LOADED * (total + 1) or fronts[home].outstanding == 0:
            return home
    if code not in (LEAST_KV, LEAST_WORK):
        return fewest(fronts, start, n, aux)
    best = aux[start]
    for k in range(start + 1, start + n):
        if _less(code, fronts[aux[k]], fronts[best]):
            best = aux[k]
    return best


@jitable
def fewest(fronts: Column, start: int, n: int, aux: Column) -> int:
    """Of the `n` replicas from `start` on in aux, the one with the fewest requests not yet answered."""
    best = aux[start]
    least = fronts[best].outstanding
    for k in range(start + 1, start + n):
        outstanding = fronts[aux[k]].outstanding
        if outstanding < least:
            least = outstanding
            best = aux[k]
    return best


@jitable
def home_of(req: Requests, i: int, aux: Column, roster: Column) -> int:
    """Replica where the conversation of request i has its place; while that is not in service another one, for each of
    its conversations one of its own: those of the others stay where they are, as on a hash ring."""
    at = group_at(req, i)
    start, serving = aux[at + START], aux[at + COUNT]
    if len(roster) > 0 and serving < roster[at + COUNT]:
        value, n = req.pick[i], roster[at + COUNT]
        while value > 0:
            home = roster[start + value % n]
            for k in range(start, start + serving):
                if aux[k] == home:
                    return home
            value = value // n
    return aux[start + req.pick[i] % serving]


@jitable
def _better_of_two(pick: int, fronts: Column, start: int, n: int, aux: Column) -> int:
    if n == 1:
        return aux[start]
    first = pick % n
    second = (pick // n) % (n - 1)
    if second >= first:
        second += 1
    one = aux[start + first]
    other = aux[start + second]
    return other if fronts[other].outstanding < fronts[one].outstanding else one


@jitable
def _less(code: int, front: Front, other: Front) -> bool:
    """True when the first of two replicas is less loaded."""
    if code == LEAST_KV:
        return front.used_blocks * other.blocks < other.used_blocks * front.blocks
    return front.work * other.speed < other.work * front.speed
