"""What `import simulator` promises, and that compiled code always belongs to the sources it was made from."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simulator
from simulator.jit import source_hash

ROOT = Path(__file__).resolve().parents[2]
PROMISED = {"Result", "Scenario", "Trace", "load_plan", "load_scenario", "load_trace", "plan", "scenario_from",
            "simulate"}


def test_promised_names_are_exported() -> None:
    assert set(simulator.__all__) >= PROMISED
    assert list(simulator.__all__) == sorted(simulator.__all__)
    assert len(set(simulator.__all__)) == len(simulator.__all__)


@pytest.mark.parametrize("name", simulator.__all__)
def test_exported_name_is_there_and_documented(name: str) -> None:
    assert getattr(simulator, name).__doc__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        simulator.nothing_of_the_kind  # noqa: B018


def python(code: str, root: Path, cache: Path) -> str:
    """Output of a fresh interpreter that imports from `root` and compiles into `cache`."""
    env = os.environ | {"PYTHONPATH": str(root), "SERVECAST_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_light(tmp_path: Path) -> None:
    """Importing the package loads none of the large libraries."""
    heavy = "{'numba', 'pandas', 'matplotlib', 'simpy', 'pydantic'}"
    code = f"import sys, simulator; print(sorted({heavy} & set(sys.modules)))"
    assert python(code, ROOT, tmp_path) == "[]"


def copy_of_sources(place: Path) -> Path:
    """The importable packages, without caches."""
    for name in ("simulator", "policies", "hwprofiles"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def jitable_modules(root: Path) -> list[Path]:
    """Sources that define something the compiled engine may inline, or constants such code uses."""
    found = []
    for path in sorted([*root.glob("simulator/**/*.py"), *root.glob("policies/*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        marks = {getattr(d, "id", "") for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                 for d in node.decorator_list}  # fmt: skip
        if "jitable" in marks or path.name in ("state.py", "units.py", "jit.py"):
            found.append(path)
    return found


def test_every_source_of_compiled_code_is_in_its_hash(tmp_path: Path) -> None:
    """One changed byte in any of them, and the machine code is another's."""
    root = copy_of_sources(tmp_path)
    before = source_hash(root)
    modules = jitable_modules(root)
    assert len(modules) >= 12
    for path in modules:
        text = path.read_bytes()
        path.write_bytes(text + b"#\n")
        assert source_hash(root) != before, path
        path.write_bytes(text)
    assert source_hash(root) == before


def test_the_hash_tells_places_apart(tmp_path: Path) -> None:
    """Two installed copies do not share a folder even when their text is the same."""
    assert source_hash(copy_of_sources(tmp_path / "a")) != source_hash(copy_of_sources(tmp_path / "b"))


FOUR_SLOTS = """
from simulator import scenario_from, simulate
result = simulate(scenario_from({"workload": {"requests": {"output": [4, 4, 10, 10, 4, 4]}}, "hardware": "unit",
                                 "policy": {"name": "orca", "max_num_seqs": 4}}))
print(result.totals['steps'][0])
"""


BLOCKS = """
from simulator.jit import compiled
from simulator.windows import blocks_for
def run(tokens):
    return blocks_for(tokens, 16)
print(compiled(run, 'blocks')(17))
"""


def _versions(tmp_path: Path, file: str, before: str, after: str, script: str) -> list[str]:
    """What the script prints with a source as it is, edited, and edited back; one cache folder for all three."""
    root, cache = copy_of_sources(tmp_path / "tree"), tmp_path / "cache"
    text = (root / file).read_text()
    edited = text.replace(before, after)
    assert edited != text
    found = []
    for version in (text, edited, text):
        (root / file).write_text(version)
        found.append(python(script, root, cache))
    assert len(list((cache / "compiled").iterdir())) == 2
    return found


def test_an_edited_source_never_runs_stale_machine_code(tmp_path: Path) -> None:
    """17 tokens take two blocks of 16; edited to count whole ones, one. Edited back: two again, from the same cache
    folder, in which both versions lie side by side."""
    assert _versions(tmp_path, "simulator/windows.py", "(tokens + block_size - 1) // block_size",
                     "tokens // block_size", BLOCKS) == ["2", "1", "2"]


@pytest.mark.nightly
def test_an_edited_policy_never_runs_stale_machine_code(tmp_path: Path) -> None:
    """Four slots: 10 steps. Edited to serve one at a time: the 36 tokens take 36 steps."""
    assert _versions(tmp_path, "policies/orca.py", "held(rep) < lim.max_num_seqs", "held(rep) < 1",
                     FOUR_SLOTS) == ["10", "36", "10"]
