"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

os.environ["SERVECAST_COMPILE"] = "wait"  # tests compile before they run: what runs where must not depend on the cache
settings.register_profile("found", phases=[Phase.explicit, Phase.generate], database=None)  # a failure is left as found


@pytest.fixture(scope="session", autouse=True)
def nothing_said_of_compiling() -> Iterator[None]:
    """What a test finds on stderr must not depend on the cache."""
    from simulator import code_cache, engine_choice

    with pytest.MonkeyPatch.context() as patch:
        for module in (code_cache, engine_choice):
            patch.setattr(module, "tell_compiling", lambda name: None)
        yield


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled engine is run by the interpreter meanwhile."""
    from simulator.engines import fast

    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr(fast, "_engines", {})
    fast._control.cache_clear()
    yield
    fast._control.cache_clear()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the public data sets: SERVECAST_DATA, or `shared` beside the checkout; absent: skip."""
    given = os.environ.get("SERVECAST_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"public data not found at {folder}; set SERVECAST_DATA to its folder")
    return folder
