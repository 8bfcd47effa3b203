"""Simulated points kept on disk, by a hash of everything that decides them: a plan re-runs what changed.

One SQLite file (safe with several processes and after a kill); values are JSON.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator.code_cache import cache_home


def default_folder() -> Path:
    """$SERVECAST_CACHE or the user's cache folder; without one a place where nothing can be kept."""
    return cache_home() or Path(os.devnull)


def content_key(parts: Mapping[str, Any]) -> str:
    """Hash of plain data and numpy arrays."""
    digest = hashlib.sha256()
    for name, value in sorted(parts.items()):
        digest.update(f"{name}=".encode())
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(json.dumps(value, sort_keys=True, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()


class PointCache:
    """A key-value store of JSON; a folder that cannot be written is a cache that keeps nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or default_folder()) / "points.sqlite"
        self._memory: dict[str, dict[str, Any]] = {}
        self._file = self._open()

    def _open(self) -> sqlite3.Connection | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(self.path, timeout=10, isolation_level=None)
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("CREATE TABLE IF NOT EXISTS points (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            return file
        except (OSError, sqlite3.Error):
            return None

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of a key, None when it is not there."""
        if key not in self._memory and self._file is not None:
            try:
                row = self._file.execute("SELECT value FROM points WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error:
                row = None
            if row:
                self._memory[key] = json.loads(row[0])
        return self._memory.get(key)

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a record."""
        self._memory[key] = value
        if self._file is not None:
            try:
                self._file.execute("INSERT OR REPLACE INTO points VALUES (?, ?)", (key, json.dumps(value)))
            except sqlite3.Error:
                self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
