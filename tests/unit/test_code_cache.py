"""Machine code on disk is run when it is loaded: only what this user wrote, whole and for this very key, may be."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator import code_cache
from simulator.code_cache import CodeCache, cache_home, tell_compiling, tell_once
from simulator.jit import signals_kept

ROOT = Path(__file__).resolve().parents[2]
CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def nothing_told_yet() -> None:
    tell_once.cache_clear()


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    made = CodeCache(tmp_path / "code")
    made.save("engine-x", "key", CONTENT)
    return made


def only_file(cache: CodeCache) -> Path:
    assert cache.folder is not None
    (path,) = cache.folder.iterdir()
    return path


def test_what_was_saved_comes_back_under_its_key_alone(cache: CodeCache) -> None:
    assert cache.load("engine-x", "key") == CONTENT
    assert cache.load("engine-x", "another") is None and cache.load("engine-y", "key") is None
    assert cache.has("engine-x") and not cache.has("engine-y")


def test_the_folder_is_closed_to_others(cache: CodeCache) -> None:
    assert cache.folder is not None
    assert cache.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["empty", "truncated", "one bit", "longer"])
def test_a_damaged_file_is_removed_and_made_again(cache: CodeCache, damage: str) -> None:
    path = only_file(cache)
    whole = path.read_bytes()
    flipped = bytes([*whole[:-1], whole[-1] ^ 1])
    path.write_bytes({"empty": b"", "truncated": whole[:-1], "one bit": flipped, "longer": whole + b"\0"}[damage])
    assert cache.load("engine-x", "key") is None and not path.exists()
    cache.save("engine-x", "key", CONTENT)
    assert cache.load("engine-x", "key") == CONTENT


def test_a_file_cannot_stand_for_another(cache: CodeCache) -> None:
    path = only_file(cache)
    cache.save("engine-y", "key", b"other")
    assert cache.folder is not None
    (other,) = cache.folder.glob("engine-y-*")
    path.replace(other)
    assert cache.load("engine-y", "key") is None


def test_code_that_others_could_have_written_is_not_used(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = only_file(cache)
    path.chmod(0o666)
    assert cache.load("engine-x", "key") is None
    cache.save("engine-x", "key", CONTENT)
    path = only_file(cache)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.load("engine-x", "key") is None


def test_a_link_is_not_followed(cache: CodeCache, tmp_path: Path) -> None:
    path = only_file(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load("engine-x", "key") is None


def test_a_folder_open_to_others_is_not_used_and_said_so(cache: CodeCache, caplog: pytest.LogCaptureFixture) -> None:
    assert cache.folder is not None
    cache.folder.chmod(0o777)
    assert cache.load("engine-x", "key") is None and not cache.has("engine-x") and not cache.writable()
    assert [str(cache.folder) in text and "777" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize("folder", [None, Path("/proc/servecast"), Path(os.devnull) / "below"])
def test_where_nothing_can_be_written_nothing_is_kept(folder: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    cache = CodeCache(folder)
    cache.save("engine-x", "key", CONTENT)
    assert cache.load("engine-x", "key") is None and not cache.has("engine-x")
    assert len(caplog.messages) == 1 and "SERVECAST_CACHE" in caplog.messages[0]
    with cache.alone("any", 0) as mine:
        assert mine


def test_a_long_compile_is_announced_once_and_what_is_there_is_not(
    cache: CodeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_cache, "tell_compiling", tell_compiling)
    assert cache.load("engine-x", "key") == CONTENT and not caplog.messages
    for _ in range(2):  # before and after waiting for another process
        assert cache.load("engine-y", "key") is None and cache.load("short", "key") is None
    assert len(caplog.messages) == 1 and "compiling the engine (y)" in caplog.messages[0]


def test_no_home_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME and without an entry in the password file `~` stays as it is: it must not become a folder."""
    for name in ("SERVECAST_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_home() is None


HOLDER = """
import sys, time
from pathlib import Path
from simulator.code_cache import CodeCache
with CodeCache(Path(sys.argv[1])).alone("engine-x", 0) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(cache: CodeCache) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(cache.folder)], stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()


def test_a_killed_process_leaves_no_lock(cache: CodeCache, holder: "subprocess.Popen[str]") -> None:
    with cache.alone("engine-x", 0) as mine:
        assert not mine
    holder.kill()
    holder.wait()
    with cache.alone("engine-x", 0) as mine:
        assert mine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_callback_of_the_compiler_is_not_lost(number: int) -> None:
    """ctypes drops what a callback raises; so does the stand-in here, which is named like llvmlite's."""

    def _raw_object_cache_notify() -> None:
        try:
            signal.raise_signal(number)
            time.sleep(0)
        except BaseException:
            return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(number, stop)
    try:
        with pytest.raises(SystemExit) as ended, signals_kept():
            _raw_object_cache_notify()
            time.sleep(5)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_code_of_versions_not_used_for_a_month_is_removed(tmp_path: Path) -> None:
    names = (f"{'a' * 16}-{'0' * 8}", f"{'b' * 16}-{'0' * 8}", "x")
    old, used, foreign = (tmp_path / "compiled" / name for name in names)
    for folder in (old, used, foreign):
        CodeCache(folder).save("engine-x", "key", b"code")
    for folder in (old, used, foreign):
        os.utime(folder, (0, 0))
    assert CodeCache(used).load("engine-x", "key") == b"code"  # that is a use
    CodeCache(tmp_path / "compiled" / f"{'c' * 16}-{'0' * 8}").save("engine-x", "key", b"code")
    assert not old.exists() and used.exists() and foreign.exists()


def test_a_clock_set_back_loses_nothing(tmp_path: Path) -> None:
    versions = [CodeCache(tmp_path / "compiled" / f"{letter * 16}-{'0' * 8}") for letter in "ab"]
    for cache in versions:
        cache.save("engine-x", "key", CONTENT)
        assert cache.folder is not None
        for path in (*cache.folder.iterdir(), cache.folder):
            os.utime(path, (time.time() + 1e8, time.time() + 1e8))  # all of it was written in years to come
    versions[0].save("engine-y", "key", CONTENT)
    assert [cache.load("engine-x", "key") for cache in versions] == [CONTENT, CONTENT]
    assert versions[0].load("engine-y", "key") == CONTENT
