"""Profile files read: YAML as plain data, whatever is wrong with them as one line that names the file."""

from pathlib import Path
from typing import Any

import yaml

from simulator.errors import ConfigError

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_profile(path: Path, kind: str) -> Any:
    """The content of a profile (`kind`: GPU, engine, ... for the message). Raises ConfigError when it is not YAML."""
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=_Loader)  # a safe loader in both cases
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a readable {kind} profile: {error}") from error
