"""`kv.swap` as the engine takes it: blocks of host memory and the time to copy one."""

from policies.registry import POLICIES, Policy
from simulator.errors import ConfigError
from simulator.profiles.model import ModelShape
from simulator.scenario.spec import Scenario
from simulator.state import LARGEST_COUNT
from simulator.units import GIB, NS_PER_S


def swap_limits(scenario: Scenario, model: ModelShape, policy: Policy, block_size: int) -> dict[str, int]:
    """swap_blocks and swap_ns of the limits; empty without kv.swap. Raises ConfigError where it is not modelled."""
    swap = scenario.kv.swap
    if swap is None:
        return {}
    if not policy.swaps or scenario.kv.layout != "paged":
        names = ", ".join(each.name for each in POLICIES.values() if each.swaps)
        raise ConfigError(f"{scenario.place('kv.swap')} needs layout: paged and a policy that preempts by swap "
                          f"({names}), got {scenario.kv.layout} and {policy.name}")
    hardware = scenario.hardware
    block_bytes = model.kv_bytes_per_token(hardware.kv_dtype, hardware.tensor_parallel) * block_size
    blocks = min(int(swap.gib * GIB) // block_bytes, LARGEST_COUNT)
    if blocks < 1:
        raise ConfigError(f"{scenario.place('kv.swap')}: gib must hold a KV block of {block_bytes:,} bytes, got "
                          f"{swap.gib}")
    return {"swap_blocks": blocks, "swap_ns": round(block_bytes / (swap.gb_per_s * 1e9) * NS_PER_S)}
