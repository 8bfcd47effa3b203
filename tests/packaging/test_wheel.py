"""What is installed is what is in the tree, no file more and no file less."""

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
PACKAGES = ("simulator", "policies", "hwprofiles", "scenarios", "calibration")
ALSO = ("pyproject.toml", "README.md", "LICENSE")
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.pyc", "*.nbi", "*.nbc", ".*")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a release is built from, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(HOME / name, copy / name, ignore=LEFT_BEHIND)
    for name in ALSO:
        shutil.copy(HOME / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    expected_before = {path for path in source.rglob("*") if path.is_file()}
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, source],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert expected_before <= {path for path in source.rglob("*") if path.is_file()}
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_the_tree(wheel, source):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tree = {path.relative_to(source).as_posix() for name in PACKAGES for path in (source / name).rglob("*")
            if path.is_file()}
    assert inside == tree


def test_wheel_has_command_and_licence(wheel):
    (entry,) = (name for name in wheel.namelist() if name.endswith("dist-info/entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry).decode())
    assert dict(scripts["console_scripts"]) == {"servecast": "simulator.cli.main:main"}
    assert any(name.endswith("LICENSE") for name in wheel.namelist())


def test_every_package_folder_is_importable():
    """A folder of python files without __init__.py would be left out of the wheel."""
    for package in PACKAGES:
        for path in (HOME / package).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path


def test_exported_names_resolve_and_explain_themselves():
    import simulator

    assert simulator.__all__ == sorted(simulator.__all__)
    for name in simulator.__all__:
        assert getattr(simulator, name).__doc__, name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = simulator.nonsense


def test_importing_the_package_is_cheap():
    code = "import sys, simulator; print(sorted({'numba', 'pydantic', 'pyarrow', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
