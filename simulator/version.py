"""The version, on its own so that anything may read it."""

from typing import Final

__version__: Final = "0.1.0"

SCHEMAS: Final = {"summary": 1, "plan": 1, "budget": 1, "capacity": 1, "load": 1, "whatif": 1, "deployments": 1,
                  "kv": 1, "bench": 1, "selftest": 1, "sweep": 1}
"""Version of each kind of JSON that is written: one higher when a key goes, or means something else. Added keys
leave it as it is. simulator/report/schemas.yaml has them; docs/stability.md says what that promises."""


def schema_of(kind: str) -> str:
    """What a JSON of that kind says of itself under the key `schema`: `plan/1`."""
    return f"{kind}/{SCHEMAS[kind]}"
