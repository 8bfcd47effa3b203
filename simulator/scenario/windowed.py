"""Models with windowed attention in a scenario: the limits that follow, and what is refused beside them."""

from policies.registry import Policy
from simulator.errors import ConfigError
from simulator.profiles.kv_groups import kv_groups
from simulator.profiles.model import ModelShape
from simulator.scenario.spec import Scenario


def window_limits(model: ModelShape, max_model_len: int) -> dict[str, int]:
    """The limits that say what windowed layers see and hold; empty where no request is longer than the window."""
    if not 0 < model.window < max_model_len:
        return {}
    groups = kv_groups(model).windows
    full = sum(1 for window in groups if not window)
    return {"window": model.window, "chunked": int(model.chunked), "full_groups": full,
            "window_groups": len(groups) - full}


def refuse_beside_windows(scenario: Scenario, model: ModelShape, policy: Policy) -> None:
    """Raise ConfigError for what memory of windowed layers is not modelled with."""
    kind = f"{model.name} has attention windows of {model.window} tokens"
    if policy.name != "chunked" or scenario.kv.layout != "paged":
        raise ConfigError(f"{scenario.place('model')}: {kind}, modelled with layout: paged and policy chunked, got "
                          f"{scenario.kv.layout} and {policy.name}; accepted: max_model_len up to {model.window}")
    if scenario.kv.prefix_caching:
        raise ConfigError(f"{scenario.place('kv.prefix_caching')}: {kind}: blocks used again are not modelled for "
                          f"them; accepted: false, or max_model_len up to {model.window}")
