"""Install the wheel into empty environments and use it: `python checks/install.py --python python3.11 python3.12`.

The wheel and the source distribution are built as a release is, and their contents are checked: the version, every
module, the sources of kernels, the page's assets, the licence, no tests. Then, for each interpreter, in an environment
that holds nothing but the wheel and what it asks for:

    new, train, predict, report   the commands of a first hour, in an empty folder
    without a compiler            the same training where no kernel can be built

The table that `INSTALL.md` holds is printed: versions, seconds and the size of the environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "cli,data,report"
FIRST_HOUR = (
    ("new", "study.toml"),
    ("train", "study.toml", "--out", "run"),
    ("predict", "run/model", "study-data.csv", "--out", "predictions.csv"),
    ("report", "run", "--out", "page.html"),
)


def main() -> int:
    """Build, check, install, use; print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to try")
    options.add_argument("--torch", nargs="+", default=["2.13.0"], help="versions of torch to try")
    asked = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        wheel = built(Path(scratch))
        for interpreter in asked.python:
            for torch in asked.torch:
                rows.append(tried(interpreter, torch, wheel, Path(scratch) / f"try-{len(rows)}"))
                print(" | ".join(rows[-1]), file=sys.stderr)
    heads = ("python", "torch", "installed in", "environment", *(command for command, *_ in FIRST_HOUR), "no compiler")
    for row in (heads, ("---",) * len(heads), *rows):
        print("| " + " | ".join(row) + " |")
    return any("failed" in cell for row in rows for cell in row)


def built(folder: Path) -> Path:
    """The wheel, after its contents and those of the source distribution were checked."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "inosgd"
    kept = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with tarfile.open(source) as archive:
        unpacked = archive.getnames()
    wanted = {
        "its version": wheel.name.startswith(f"inosgd-{version}-"),
        "every module and asset": all(str(path.relative_to(package.parent)) in inside for path in kept),
        "no tests": not any(name.startswith(("tests", "checks")) for name in inside),
        "the licence": any(name.endswith("licenses/LICENSE") for name in inside),
        "how to build it from source": any(name.endswith("pyproject.toml") for name in unpacked),
    }
    missing = [what for what, there in wanted.items() if not there]
    if missing:
        raise SystemExit(f"{wheel.name}: it lacks {', '.join(missing)}")
    return wheel


def tried(interpreter: str, torch: str, wheel: Path, folder: Path) -> tuple[str, ...]:
    """One row: an environment with the wheel alone, and what its commands did."""
    folder.mkdir()
    run([interpreter, "-m", "venv", "env"], folder)
    binaries = folder / "env" / "bin"
    start = time.monotonic()
    run([str(binaries / "pip"), "install", "--quiet", f"torch=={torch}", f"{wheel}[{EXTRAS}]"], folder)
    cells = [
        run([str(binaries / "python"), "--version"], folder).split()[-1],
        torch,
        f"{time.monotonic() - start:.0f} s",
        f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e9:.1f} GB",
    ]
    cells += [used(binaries, command, folder) for command in FIRST_HOUR]
    alone = folder / "no-compiler"
    alone.mkdir()
    shutil.copy(folder / "study.toml", alone)
    shutil.copy(folder / "study-data.csv", alone)
    hidden = {"PATH": str(binaries), "CC": "/nonexistent", "CXX": "/nonexistent", "HOME": str(alone)}
    return (*cells, used(binaries, FIRST_HOUR[1], alone, hidden))


def used(binaries: Path, command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """How long a command of the wheel took, or that it failed."""
    start = time.monotonic()
    try:
        run([str(binaries / "inosgd"), *command], folder, environment)
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return "failed"
    return f"{time.monotonic() - start:.1f} s"


def run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command printed."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(  # noqa: S603 - the commands are this file's own
        command, cwd=folder, env={**clean, **(environment or {})}, check=True, capture_output=True, text=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
