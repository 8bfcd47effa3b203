"""`kv.swap` and `kv.offload` as the engine takes them: blocks of host memory and the time to copy one."""

from policies.registry import POLICIES, Policy
from simulator.errors import ConfigError
from simulator.profiles.model import ModelShape
from simulator.scenario.sections import OffloadSpec, SwapSpec
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
    blocks, copy_ns = _on_host(scenario, "kv.swap", swap, model, block_size)
    return {"swap_blocks": blocks, "swap_ns": copy_ns}


def offload_limits(scenario: Scenario, model: ModelShape, prefix: bool, windowed: bool,
                   block_size: int) -> dict[str, int]:
    """offload_blocks and offload_ns of the limits; empty without kv.offload. `prefix`: there is a prefix cache.

    Raises ConfigError where it is not modelled.
    """
    offload = scenario.kv.offload
    if offload is None:
        return {}
    where = scenario.place("kv.offload")
    if windowed:
        raise ConfigError(f"{where} is not modelled for {scenario.model}, some of whose layers see a window only")
    if not prefix:
        raise ConfigError(f"{where} needs a prefix cache; set kv.prefix_caching: true")
    if scenario.engine.speculation:
        raise ConfigError(f"{where} is not modelled with engine.speculation")
    blocks, copy_ns = _on_host(scenario, "kv.offload", offload, model, block_size)
    return {"offload_blocks": blocks, "offload_ns": max(1, copy_ns)}


def _on_host(scenario: Scenario, key: str, host: SwapSpec | OffloadSpec, model: ModelShape,
             block_size: int) -> tuple[int, int]:
    """Blocks that host memory has room for, and the time to copy one [ns]. Raises ConfigError where it has for none."""
    hardware = scenario.hardware
    block_bytes = model.kv_bytes_per_token(hardware.kv_dtype, hardware.tensor_parallel) * block_size
    blocks = min(int(host.gib * GIB) // block_bytes, LARGEST_COUNT)
    if blocks < 1:
        raise ConfigError(f"{scenario.place(key)}: gib must hold a KV block of {block_bytes:,} bytes, got {host.gib}")
    return blocks, round(block_bytes / (host.gb_per_s * 1e9) * NS_PER_S)
