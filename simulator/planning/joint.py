"""The fewest GPUs for several deployments: each is planned for itself, for none can use another's replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.errors import ServecastError
from simulator.planning.cache import PointCache
from simulator.planning.deployments import Deployments, check_traffic, placed_in
from simulator.planning.news import INTERRUPTED, News, Tell
from simulator.planning.plan import Plan, plan
from simulator.text import several


@dataclass(frozen=True)
class Joint:
    """Plans by deployment, in their order; those that were not begun when the search was `stopped` are left out."""

    asked: Deployments
    plans: Mapping[str, Plan]
    stopped: str = ""


def plan_each(
    asked: Deployments,
    *,
    jobs: int | None = None,
    cache: PointCache | Path | None = None,
    explain: bool = True,
    progress: Tell | None = None,
) -> Joint:
    """Plan every deployment; what traffic cannot answer is said before anything is simulated.

    Ctrl-C leaves the plans that were done by then. Raises ConfigError, TraceError.
    """
    store = PointCache(cache) if isinstance(cache, Path) else cache
    check_traffic(asked)
    plans: dict[str, Plan] = {}
    stopped, simulated = "", 0
    for k, (name, spec) in enumerate(asked.specs.items()):
        tell = _part(progress, name, k, len(asked.specs), plans, simulated)
        try:
            found = plan(spec, jobs=jobs, cache=store, explain=explain, progress=tell)
        except KeyboardInterrupt:
            return Joint(asked, plans, INTERRUPTED)
        except ServecastError as error:
            raise placed_in(name, error) from None
        plans[name] = found
        simulated += found.simulated
        stopped = stopped or found.stopped
        if found.stopped == INTERRUPTED:
            return Joint(asked, plans, INTERRUPTED)
    return Joint(asked, plans, stopped)


def _part(tell: Tell | None, name: str, k: int, count: int, plans: Mapping[str, Plan], simulated: int) -> Tell | None:
    """News of one plan as those of the k-th part of `count`; what was found before is known."""
    if tell is None:
        return None
    known = [f"{other} {several(found.best.fleet.gpus, 'GPU')}" for other, found in plans.items() if found.best]

    def told(news: News) -> None:
        own = [f"{name} {news.known}"] if news.known else []
        tell(replace(news, doing=f"{name}, {news.doing}", done=(k + news.done) / count,
                     known="; ".join(known + own), simulated=simulated + news.simulated))  # fmt: skip

    return told
