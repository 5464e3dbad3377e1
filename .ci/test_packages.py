# SPDX-License-Identifier: Apache-2.0
"""`tox run -e packages`: builds the packages of other tools, installs them and runs `koala demo` from each.

Each is skipped, with what is missing, where this machine has not got its tools. Nothing stays installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rattler_build import Stage0Recipe, VariantConfig
from test_sdist import TOP, run, succeeds
from test_versions import FROM_THE_HOST, MIRROR

BASE, IMAGE = "localhost/koala-base", "localhost/koala-adapter-test"
"""Names of images, both of which are removed."""
RELEASE = "trixie"
"""Release of Debian in the image."""
CHROOT = ("--isolation", "chroot")
"""Runs what builds an image where a container cannot be had: inside one, or beside control groups of another kind."""


def main() -> None:
    """Test each kind of package; exit with the status of the first step that fails."""
    with tempfile.TemporaryDirectory(prefix="koala-packages-") as name:
        conda()
        debian(Path(name))
        image(Path(name))


def conda() -> None:
    """Read the recipe and fill it in, as rattler-build does before it asks a channel for the dependencies."""
    (found,) = Stage0Recipe.from_file(str(TOP / "packaging" / "recipe.yaml")).render(VariantConfig())
    print(f"conda: {found}", flush=True)


def debian(directory: Path) -> None:
    """Build the package; as root install it, run it and remove it."""
    if lacks("Debian package", "dh_virtualenv", "dpkg-buildpackage", root=False):
        return
    run(str(TOP / "packaging" / "deb"), str(directory / "deb"))
    (package,) = (directory / "deb").glob("*.deb")
    if lacks("installed Debian package", "dpkg", root=True) or succeeds("dpkg-query", "--show", "koala-adapter"):
        return
    try:
        run("dpkg", "--install", str(package))
        run("/usr/bin/koala", "demo", cwd=directory, shown=True)
    finally:
        run("dpkg", "--purge", "koala-adapter")


def image(directory: Path) -> None:
    """Build the image on a Debian of our own making, and run it."""
    if lacks("image", "buildah", "debootstrap", root=True):
        return
    root = directory / RELEASE
    # The script for sid serves all releases, those too that this machine's debootstrap does not know by name.
    run("debootstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, str(root), MIRROR, "sid")
    made = [container("scratch")]
    try:
        run("buildah", "add", "--quiet", made[0], str(root), "/")
        run("buildah", "commit", "--quiet", made[0], BASE)
        shared = [f"--volume={path}:{path}:ro" for path in FROM_THE_HOST if Path(path).is_file()]
        file = ("--file", str(TOP / "packaging" / "Containerfile"))
        run("buildah", "bud", *CHROOT, *shared, "--build-arg", f"BASE={BASE}", *file, "--tag", IMAGE, str(TOP))
        made.append(container(IMAGE))
        run("buildah", "run", *CHROOT, "--user", "koala", made[1], "--", "/opt/koala/bin/koala", "demo", shown=True)
    finally:
        succeeds("buildah", "rm", *made)
        succeeds("buildah", "rmi", "--force", IMAGE, BASE)


def container(base: str) -> str:
    """Return a new container of an image."""
    command = ("/usr/bin/env", "buildah", "from", base)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def lacks(what: str, *programs: str, root: bool) -> bool:
    """Tell whether something is missing here for a kind of package, and say so."""
    missing = [name for name in programs if shutil.which(name) is None]
    missing += ["to be root"] if root and os.geteuid() else []
    if missing:
        print(f"{what}: skipped, missing: {', '.join(missing)}", flush=True)
    return bool(missing)


if __name__ == "__main__":
    main()
