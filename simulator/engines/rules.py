"""Policies that share a compiled engine: `Limits.rule` says which of them is in force.

Nearly all of an engine is the same under every policy, and making it takes a minute of processor time; what differs is
compiled side by side and chosen where a policy is asked.
"""

from collections.abc import Sequence

from policies.registry import POLICIES, Arrived, Key, Policy, Step
from simulator.jit import jitable
from simulator.state import Column, Limits, Replica, Requests


def sharers(policy: Policy) -> tuple[Policy, ...]:
    """The policies compiled with this one, one for each `schedule`, itself among them."""
    shared = [other for other in POLICIES.values() if policy.engine and other.engine == policy.engine]
    return tuple({other.schedule: other for other in reversed(shared or [policy])}.values())


def rule_of(policy: Policy) -> int:
    """Limits.rule of a policy."""
    return [other.schedule for other in sharers(policy)].index(policy.schedule)


def schedule_of(policies: Sequence[Policy], rule: int = 0) -> Step:
    """`schedule` of the policy in force, of those from number `rule` on."""
    own = policies[rule].schedule
    if rule == len(policies) - 1:
        return own
    others = schedule_of(policies, rule + 1)

    @jitable
    def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
        if lim.rule == rule:
            own(req, rep, lim, aux)
        else:
            others(req, rep, lim, aux)

    return schedule


def key_of(policies: Sequence[Policy], rule: int = 0) -> Key:
    """`key` of the policy in force."""
    own = policies[rule].key
    if all(other.key is own for other in policies[rule:]):
        return own
    others = key_of(policies, rule + 1)

    @jitable
    def key(req: Requests, lim: Limits, i: int) -> int:
        if lim.rule == rule:
            return own(req, lim, i)
        return others(req, lim, i)

    return key


def arrived_of(policies: Sequence[Policy], rule: int = 0) -> Arrived:
    """`arrived` of the policy in force."""
    own = policies[rule].arrived
    if all(other.arrived is own for other in policies[rule:]):
        return own
    others = arrived_of(policies, rule + 1)

    @jitable
    def arrived(req: Requests, rep: Replica, lim: Limits, aux: Column, i: int) -> None:
        if lim.rule == rule:
            own(req, rep, lim, aux, i)
        else:
            others(req, rep, lim, aux, i)

    return arrived
