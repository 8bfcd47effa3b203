"""Profiles and models of a user's own, named by their path from the file that asks for them."""

from pathlib import Path


def beside(base: Path, name: str) -> Path | str:
    """A profile's YAML file seen from folder `base`, where there is one of that name; else the name as it is."""
    path = base / name
    return path if path.suffix in (".yaml", ".yml") and path.is_file() else name


def model_beside(base: Path, name: str) -> Path | str:
    """A config.json or the folder of one seen from `base`, where the name reads as such; else the name as it is."""
    path = base / name
    return path if path.suffix == ".json" or path.is_dir() else name
