"""The versions that developers get are versions that pyproject.toml accepts, and there is one for each library."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def test_each_library_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line) for part in (project["dependencies"], *project["optional-dependencies"].values())
             for line in part if not line.startswith("servecast")]  # fmt: skip
    lines = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert len(asked) > 20 and all(str(pin.specifier).startswith("==") for pin in pins)
    for want in asked:
        found = [str(pin.specifier)[2:] for pin in pins if pin.name.lower() == want.name.lower()]
        assert found and all(want.specifier.contains(version) for version in found), (str(want), found)
