# SPDX-License-Identifier: Apache-2.0
"""Tests the distributions: the files of the source distribution, its tests, and `koala demo` after an offline install.

Arguments are those of pytest: the tests that run in the unpacked source distribution. All of its tests are collected.
Works on a copy of the files that git knows, so that nothing is written into the sources and no file that happens to
lie there is taken along. The archive for hosts without a network (`make bundle`) is made from the source distribution,
and installed into an environment of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
LONGEST_STEP = 600.0
"""Seconds after which a step that hangs is ended."""


def main(*arguments: str) -> None:
    """Build, compare, install and test; exit with the status of the first step that fails."""
    with tempfile.TemporaryDirectory(prefix="koala-sdist-") as name:
        directory = Path(name)
        known = known_files()
        tree = directory / "tree"
        for file in known:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / file, tree / file)
        # Without --sdist or --wheel, the wheel is built from the source distribution and not from the tree.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory / "dist"), str(tree))
        (sdist,), (wheel,) = (tuple((directory / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
        run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        with tarfile.open(sdist) as archive:
            archive.extractall(directory / "unpacked", filter="data")
        (unpacked,) = (directory / "unpacked").iterdir()
        if missing := [file for file in known if not (unpacked / file).is_file()]:
            sys.exit(f"not in the source distribution, see MANIFEST.in: {', '.join(missing)}")
        pytest = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
        run(*pytest, "--collect-only", "-qq", "tests", cwd=unpacked)
        run(*pytest, *arguments, cwd=unpacked, shown=True)
        demonstrate(unpacked, directory)


def known_files() -> list[str]:
    """Return the files of the repository, with new ones that git does not ignore."""
    command = ["git", "-C", str(TOP), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_STEP)
    return [name for name in done.stdout.split("\0") if name and (TOP / name).is_file()]


def demonstrate(sources: Path, directory: Path) -> None:
    """Install the archive for hosts without a network, without one where that can be had, and run `koala demo`."""
    run(sys.executable, "-m", "venv", str(directory / "pip"))
    run(str(sources / "packaging" / "bundle"), str(directory / "pip" / "bin" / "python"), str(directory / "bundle"))
    (bundle,) = (directory / "bundle").glob("*.tar.gz")
    with tarfile.open(bundle) as archive:
        archive.extractall(directory / "bundle", filter="data")
    (install,) = (directory / "bundle").glob("*/install")
    alone = ("unshare", "--user", "--map-root-user", "--net")
    without_network = alone if shutil.which("unshare") and succeeds(*alone, "true") else ()
    installed, home = directory / "installed", directory / "home"
    home.mkdir()
    run(*without_network, str(install), str(installed))
    for arguments in (("demo",), ("docs", "getting-started"), ("conf", "slurm"), ("schema", "job")):
        run(str(installed / "bin" / "koala"), *arguments, cwd=home, shown=arguments == ("demo",))
    if not (installed / "share" / "man" / "man1" / "koala.1").is_file():
        sys.exit("the wheel installs no manual page koala(1)")


def succeeds(*command: str) -> bool:
    """Tell whether a command succeeds."""
    return subprocess.run(command, capture_output=True, timeout=LONGEST_STEP, check=False).returncode == 0


def run(*command: str, cwd: Path | None = None, shown: bool = False) -> None:
    """Run a command without the variables of koala and Python; exit with its status and its output when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KOALA_", "PYTHONPATH"))}
    print("$", *command, flush=True)
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.STDOUT,
        text=True,
        timeout=LONGEST_STEP,
        check=False,
    )
    if done.returncode:
        print(done.stdout or "")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
