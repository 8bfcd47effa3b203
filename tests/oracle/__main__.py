"""`python -m tests.oracle --cases N`: N drawn runs of the compiled engine against the oracle; prints what differs.

The same seeds as `servecast selftest`, which compares the engines with each other. Exit status 1 when one differs.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracle.test_oracle import KNOWN, UNKNOWN, expected, measured, oracle

from simulator.selftest.cases import as_told, run
from simulator.selftest.file import case_text
from simulator.selftest.trial import case_of


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=60.0)
    given = options.parse_args()
    begun, tried, wrong = time.monotonic(), 0, 0
    for seed in range(given.seed, given.seed + given.cases):
        if time.monotonic() - begun > 60 * given.minutes:
            break
        case = as_told(case_of(seed))  # the oracle knows no other clients
        own = case.limits._asdict() | {"knows": case.knows}
        unknown = any(own[name] != value for name, value in UNKNOWN.items())
        if unknown or case.policy not in KNOWN or case.others or case.changes or case.scalers:
            continue  # judged elsewhere
        wanted = expected(oracle(case))
        got = measured(run(case, "fast"), wanted)
        tried += 1
        if got != wanted:
            wrong += 1
            print(f"# seed {seed} differs: {[name for name in wanted if got[name] != wanted[name]]}\n{case_text(case)}")
    print(f"{tried:,} drawn runs from seed {given.seed} against the oracle in {time.monotonic() - begun:.0f} s: "
          f"{wrong or 'nothing'} differs")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
