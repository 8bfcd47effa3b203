"""Who gets the next request, told from the requests themselves: nothing is counted along the way."""

from fractions import Fraction
from typing import Any

LOADED = Fraction(5, 4)
"""A conversation stays where it began up to so many times the mean load, itself counted."""


def choose(router: str, seq: Any, reps: list[Any], seqs: list[Any]) -> Any:
    """The replica for `seq`."""
    open_at = {rep.index: [s for s in seqs if s.replica == rep.index and s.state in ("waiting", "running")]
               for rep in reps}
    load = {rep.index: len(open_at[rep.index]) for rep in reps}
    if router == "round_robin":
        return reps[seq.index % len(reps)]
    if router == "random":
        return reps[seq.pick % len(reps)]
    if router == "power_of_two":
        first, others = reps[seq.pick % len(reps)], list(reps)
        others.remove(first)
        if not others:
            return first
        return min([first, others[seq.pick // len(reps) % len(others)]], key=lambda rep: load[rep.index])
    if router == "least_kv":
        return min(reps, key=lambda rep: Fraction(rep.lim.num_blocks - rep.memory.free, rep.lim.num_blocks))
    if router == "least_work":
        return min(reps, key=lambda rep: sum(s.prompt + s.limit for s in open_at[rep.index]))
    if router == "session_affinity":
        home = reps[seq.pick % len(reps)]
        mean = Fraction(sum(load.values()) + 1, len(reps))
        if load[home.index] == 0 or load[home.index] + 1 <= LOADED * mean:
            return home
    return min(reps, key=lambda rep: load[rep.index])
