"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

os.environ["SERVECAST_COMPILE"] = "wait"  # tests compile before they run: what runs where must not depend on the cache
settings.register_profile("found", phases=[Phase.explicit, Phase.generate], database=None)  # a failure is left as found

@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the public data sets: SERVECAST_DATA, or `shared` beside the checkout; absent: skip."""
    given = os.environ.get("SERVECAST_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"public data not found at {folder}; set SERVECAST_DATA to its folder")
    return folder
