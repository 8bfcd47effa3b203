"""Without numba's compiler the compiled engine is run by the interpreter and leaves the same as SimPy."""

import os
import subprocess
import sys

AGREE = """
from simulator.selftest.cases import Uniform, differences, some_case
from simulator.selftest.fleets import changing, handing_over, unlike_pools
from simulator.selftest.mixed import mixed

def drawn(seed):
    return some_case(Uniform(seed))

unlike = [(draw.__name__, seed) for draw in (drawn, unlike_pools, changing, handing_over, mixed) for seed in range(3)
          if differences(draw(seed))]
print(unlike)
"""


def test_engines_agree_without_a_compiler() -> None:
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", AGREE], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
