"""`python -m tests.engines`: compile every engine, as many at a time as there are cores.

Before all tests: each would else be compiled by the first test to meet it, while those that need it too wait.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from policies.registry import POLICIES
from simulator.selftest.cases import Case, Uniform, run, some_case
from simulator.selftest.fleets import changing


def make(case: Case) -> None:
    """Compile what the case needs, or load it."""
    run(case, "fast")


def main() -> None:
    """A case of each engine, and at last one with changes of the fleet, which are compiled apart."""
    policies = {policy.engine or name: name for name, policy in POLICIES.items()}
    cases = [some_case(Uniform(0), {"policy": name}) for name in policies.values()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        list(pool.map(make, [*cases, changing(0)]))


if __name__ == "__main__":
    main()
