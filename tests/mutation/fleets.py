"""Planted bugs of the fleet over time: autoscaling, crashes, hours and cost. All on SimPy: nothing to compile."""

from mutation.bug import Bug

SCALING, MEMBERS = "simulator/engines/scaling.py", "simulator/engines/members.py"
CHANGES, BOOKING = "simulator/engines/changes.py", "simulator/engines/booking.py"
SIGNALS, ROUTING = "policies/signals.py", ("tests/unit/test_routing.py",)
FORECAST, GATEWAY = "simulator/engines/forecast.py", "simulator/engines/gateway.py"
AGAIN, ABORT = "simulator/engines/again.py", "simulator/engines/abort.py"
FLEET, AUTOSCALER = "simulator/metrics/fleet.py", "simulator/report/autoscaler.py"
HAND = ("tests/unit/test_autoscale.py",)
EVENTS = ("tests/unit/test_changes.py",)
REPORT = ("tests/unit/test_fleet_report.py",)
SPLIT = ("tests/unit/test_handover.py",)
LOSS = ("tests/plan/test_alternatives.py", "-k", "may_lose")

BUGS = (
    Bug("desired replicas rounded down", SCALING, "return -(-above // below)", "return above // below", HAND),
    Bug("no tolerance", SCALING, "<= scaler.tolerance * target", "<= 0", HAND),
    Bug("starting replicas are as busy as others", SCALING, "    pods = serving + missing\n", "    pods = serving\n",
        HAND),
    Bug("replicas without a metric count as idle before one goes", SCALING, "value += missing * scaler.target",
        "value += 0", HAND),
    Bug("pending ones count before one goes", SCALING, "    elif more:\n        pods += pending", "    pods += pending",
        HAND),
    Bug("the direction may turn", SCALING, "(more and again < scaler.target)", "(more and again < 0)", HAND),
    Bug("the lowest recommendation goes down", SCALING, "down = max(down, past.recommended)",
        "down = min(down, past.recommended)", HAND),
    Bug("a window longer by a decision", SCALING, "past.tick > tick - scaler.down_window",
        "past.tick >= tick - scaler.down_window", HAND),
    Bug("no limit a period", SCALING, "max(least, min(asked, max(now, limit), scaler.count))",
        "max(least, min(asked, scaler.count))", HAND),
    Bug("KEDA does not see the gateway", SCALING, "total += MILLI * _at_gateway(world, scaler)", "total += 0", HAND),
    Bug("a forecast of now", FORECAST, "- scaler.ahead *", "- 0 * scaler.ahead *", HAND),
    Bug("a forecast rounded down", FORECAST, "max(asked, -(-above //", "max(asked, (above //", HAND),
    Bug("a forecast without the last decision", FORECAST, "int(scaler.n_past) + 1)", "int(scaler.n_past))", HAND),
    Bug("a forecast alone", FORECAST, "return max(asked, -(", "return max(0, -(", HAND),
    Bug("a forecast manifest in seconds", AUTOSCALER, "round(1000 * spec.look_ahead_s)", "round(spec.look_ahead_s)",
        REPORT),
    Bug("last come, first served", GATEWAY,
        "        req.next[ctl.parked_last] = i\n    ctl.parked_last = i\n",
        "        req.next[i] = ctl.parked\n        ctl.parked = i\n", EVENTS),
    Bug("no cool-down", SCALING, "tick - scaler.active > scaler.cool_down", "tick > 0", HAND),
    Bug("first tokens of all time", SCALING, "or req.first[i] <= tick - scaler.ttft_window:\n            continue",
        "or req.first[i] < 0:\n            continue", HAND),
    Bug("the oldest goes first", SCALING, "fronts[r].since) >= (_rank(fronts[best].state)",
        "-fronts[r].since) >= (_rank(fronts[best].state)", HAND),
    Bug("a replica starts in no time", MEMBERS, "tick + scaler.start, event_code", "tick, event_code", HAND),
    Bug("released in the middle of answers", MEMBERS, "front.outstanding > 0 or c.free_blocks < front.blocks",
        "c.free_blocks < 0", HAND),
    Bug("released ones stay members", SCALING, "        scaler.members -= 1\n", "        pass\n", HAND),
    Bug("a hanging replica goes on", CHANGES, "    front.hung = tick\n", "    front.hung = NEVER\n", EVENTS),
    Bug("slow steps as fast as others", BOOKING, "slowed(rep.c.slow, dense, decode, prefill, head)",
        "dense, decode, prefill, head", EVENTS),
    Bug("no notice", CHANGES, "tick + changes.notice, event_code", "tick, event_code", EVENTS),
    Bug("the gateway tries once more", AGAIN, "> changes.retries", "> changes.retries + 1", EVENTS),
    Bug("gaps of lost attempts are forgotten", AGAIN, "    if req.done[i] > 1:\n", "    if req.done[i] < 0:\n", EVENTS),
    Bug("a first token is waited for twice", AGAIN, "req.watched[i] |= BEGUN", "req.watched[i] |= 0", EVENTS),
    Bug("KV of the dead is fetched", CHANGES, "        lose_kv(world, rep, r, counters, tick)\n", "        pass\n",
        SPLIT),
    Bug("KV of a lost queue stays", AGAIN, "        let_go_of(world, i, tick)\n", "        pass\n", SPLIT),
    Bug("KV of who gives up stays", ABORT, "    let_go_of(world, i, now)\n", "", SPLIT),
    Bug("who gives up at the gateway goes on", ABORT, "        _leave_gateway(world, i)\n", "        pass\n", EVENTS),
    Bug("begins anew as its own second half", AGAIN, "            req.group[i] -= world.links.groups\n",
        "            pass\n", SPLIT),
    Bug("a look between two steps finds nobody at work", SCALING, " or counters[r].last_output == tick", "", HAND),
    Bug("conversations of the living move", "policies/routers.py", "serving < roster[at + COUNT]", "serving < 0",
        EVENTS),
    Bug("huge pages for a number a row", "simulator/memory.py", "size < LARGE or", "size > 0 or",
        ("tests/unit/test_large_fleets.py",)),
    Bug("a number for every block of every cache", "simulator/engines/job.py",
        "zeros_as_used((replicas, kinds), np.int64)", "np.full((replicas, kinds), 0, dtype=np.int64)",
        ("tests/unit/test_large_fleets.py",)),
    Bug("the router always looks", SIGNALS, "tick - routing[LOOKED] < signals.stale", "tick < 0", ROUTING),
    Bug("the index never forgets", SIGNALS, "signals.clock[r] - value >= signals.capacity", "value < 0", ROUTING),
    Bug("prefixes before loads far apart", SIGNALS, "high - low > signals.most_apart", "high - low > 10**9", ROUTING),
    Bug("any share of a prompt will do", SIGNALS, "signals.share * blocks", "0", ROUTING),
    Bug("absent replicas are paid for", FLEET, "- stays(result, begin, end).spent(ABSENT)",
        "- 0 * stays(result, begin, end).spent(ABSENT)", HAND),
    Bug("hours of before the first arrival", FLEET, "start, stop = np.clip(rows[:, 1], begin, end)",
        "start, stop = rows[:, 1]", REPORT),
    Bug("second halves from their first step on", "simulator/report/timeline.py",
        "np.maximum(spans.start, req.landed[row])", "spans.start", SPLIT),
    Bug("first halves have slots of their own", "simulator/report/timeline.py", "if end <= start[k]",
        "if end < start[k]", SPLIT),
    Bug("KV is sent in no time, in the picture", "simulator/report/journeys.py",
        "np.clip(seconds(req.landed), first, last)", "first", ("tests/unit/test_journeys.py",)),
    Bug("an autoscaled fleet loses nobody", "simulator/planning/loss.py", "for r in range(spec.survive)]",
        "for r in range(0)]", LOSS),
    Bug("an autoscaled fleet survives at any target", "simulator/planning/alternatives.py",
        "LOSSES - 1 if asked.searched else 0", "0", LOSS),
    Bug("a manifest of the least replicas twice", AUTOSCALER, '"maxReplicas": most', '"maxReplicas": spec.min', REPORT),
    Bug("a manifest in whole units", AUTOSCALER, 'else f"{milli}m"', "else str(milli)", REPORT),
)  # fmt: skip
