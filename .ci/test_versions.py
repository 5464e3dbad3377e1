# SPDX-License-Identifier: Apache-2.0
"""`make test-versions`: unit tests, kit, behaviour, `koala schedule` and WIKI tests on other releases of Debian.

Each release has its own Slurm and Python, and lives in a folder that debootstrap(8) makes in two minutes. Its file
systems are mounted in a mount namespace of the command that needs them, so that none stays behind. Where the machine
cannot do this, each release is skipped, with what is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
ROOTS = TOP / ".tox" / "debian"
REPORTS = TOP / ".tox" / "reports"
MIRROR = "http://deb.debian.org/debian"
RELEASES = ("trixie", "forky")
PACKAGES = (
    "ca-certificates",
    "python3",
    "python3-venv",
    "python3-dev",
    "make",
    "openssl",
    "bash-completion",
    "pkgconf",
)
"""What the tests need beside the batch systems, which `.ci/install_debian` installs."""

UNIT = ("-n", "2", "tests/unit")
"""Arguments of pytest for what needs no batch system."""

ON_SLURM: tuple[str, ...] = (
    "tests/real/test_slurm_plugin.py",
    "tests/real/test_slurm_behaviour.py",
    "tests/real/test_slurm_places.py",
    "tests/real/test_schedule_slurm.py",
    "tests/real/test_wiki_slurm.py",
)
ON_GRID_ENGINE = (
    "tests/real/test_sge_plugin.py",
    "tests/real/test_schedule_grid_engine.py",
    "tests/real/test_wiki_gridengine.py",
)

FROM_THE_HOST = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf",
    "/etc/xdg/pip/constraints.txt",
    "/root/.config/pip/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
)
"""Names, and where packages of Python come from. They are needed below a root that knows nothing of this machine."""

MOUNT_AND_ENTER = """
root=$1; shift
for each in proc sys dev; do mount --rbind /$each "$root/$each"; done
exec chroot "$root" "$@"
"""


class VersionsError(Exception):
    """A release could not be made ready."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Debian in a folder."""

    name: str

    @property
    def root(self) -> Path:
        """The folder that is its root directory."""
        return ROOTS / self.name

    @property
    def log(self) -> Path:
        """What making it ready has printed."""
        return ROOTS / f"{self.name}.log"

    def make(self) -> None:
        """Make the folder, with the batch systems and this source. Raises VersionsError."""
        ready = self.root / ".ready"
        if not ready.exists():
            if self.root.exists():
                shutil.rmtree(self.root)
            self.root.mkdir(parents=True)
            bootstrap = ("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", self.name, self.root)
            # The script for sid serves all of them, those too that this machine's debootstrap does not know by name.
            self._do(*map(str, bootstrap), MIRROR, "sid")
            # A mirror that lags offers lists past their date. Their signatures are checked all the same.
            (self.root / "etc/apt/apt.conf.d/90lagging-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
            ready.touch()
        self._copy_from_the_host()
        self._copy_source()
        self._do(*self._inside("env", "--unset=KOALA_REQUIRE_REAL", ".ci/install_debian"))
        self._do(*self._inside(".ci/make_venv", "/opt/venv"))
        pip = ("/opt/venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        self._do(*self._inside(*pip, "--editable", ".[test]", "--editable", "plugins/koala-experiments"))

    def versions(self) -> str:
        """Say which Python and Slurm it has."""
        said = subprocess.run(
            self._inside("sh", "-c", "/opt/venv/bin/python --version; scontrol --version"),
            capture_output=True,
            text=True,
            check=False,
        )
        return ", ".join(said.stdout.split("\n")).strip(", ")

    def test(self) -> bool:
        """Run unit tests and real ones side by side; say whether none failed.

        Their reports go where those of `make test` are. A release may have no Grid Engine; each has a Slurm.
        """
        real = ON_SLURM
        if (self.root / "usr/lib/gridengine/sge_qmaster").exists():
            real += ON_GRID_ENGINE
        else:
            print(f"{self.name}: has no Grid Engine, whose tests are left out", flush=True)
        parts = {"unit": UNIT, "real": ("-p", "no:randomly", "-n", "3", *real)}
        running = [subprocess.Popen(self._pytest(part, arguments)) for part, arguments in parts.items()]
        statuses = [process.wait() for process in running]
        REPORTS.mkdir(parents=True, exist_ok=True)
        for report in self.root.glob("koala/report-*.xml"):
            shutil.copy(report, REPORTS / f"{self.name}-{report.stem.removeprefix('report-')}.xml")
        return not any(statuses)

    def _pytest(self, part: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        usual = ("--quiet", "--dist", "worksteal", f"--junit-xml=report-{part}.xml", f"--basetemp=/tmp/{part}")
        return self._inside("/opt/venv/bin/python", "-m", "pytest", *usual, *arguments)

    def _inside(self, *command: str) -> tuple[str, ...]:
        """Return a command that runs below the root, in the folder of the source."""
        enter = ("env", "--chdir=/koala", "LC_ALL=C.UTF-8", "KOALA_REQUIRE_REAL=1", *command)
        return ("unshare", "--mount", "sh", "-ec", MOUNT_AND_ENTER, "sh", str(self.root), *enter)

    def _copy_from_the_host(self) -> None:
        for name in FROM_THE_HOST:
            if Path(name).exists():
                target = self.root / name.removeprefix("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(name, target)

    def _copy_source(self) -> None:
        """Copy what git knows of, as it is now, so that nothing of the host's environments comes along."""
        listed = subprocess.run(
            ("/usr/bin/env", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
            cwd=TOP,
            capture_output=True,
            check=False,
        )
        if listed.returncode:
            message = f"this is no clone of the repository: {listed.stderr.decode(errors='replace').strip()}"
            raise VersionsError(message)
        shutil.rmtree(self.root / "koala", ignore_errors=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (TOP / name).exists():
                target = self.root / "koala" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(TOP / name, target, follow_symlinks=False)

    def _do(self, *command: str) -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            message = f"{self.name}: could not be made ready; the end of {self.log}:\n{last}"
            raise VersionsError(message)


def missing() -> str:
    """Return what keeps this machine from making releases of Debian; nothing where it can."""
    if os.geteuid() != 0:
        return "to be root"
    programs = [name for name in ("debootstrap", "unshare", "git") if shutil.which(name) is None]
    if programs:
        return f"{', '.join(programs)} (apt-get install {' '.join(programs)})"
    entered = subprocess.run(
        ("/usr/bin/env", "unshare", "--mount", "true"), capture_output=True, text=True, check=False
    )
    return "" if entered.returncode == 0 else f"a mount namespace ({entered.stderr.strip()})"


def main() -> int:
    """Test the releases that are named; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE", help=f"by default {RELEASES}")
    releases = [Release(name) for name in parser.parse_args().releases]
    lacking = missing()
    if lacking:
        required = os.environ.get("KOALA_REQUIRE_REAL") == "1"
        for release in releases:
            print(f"{release.name}: {'FAILED' if required else 'skipped'}, missing: {lacking}")
        return int(required)
    ROOTS.mkdir(parents=True, exist_ok=True)
    failed = False
    for release in releases:
        print(f"{release.name}: making it ready, two minutes or so (its log: {release.log})", flush=True)
        try:
            release.make()
            print(f"{release.name}: {release.versions()}", flush=True)
            failed |= not release.test()
        except VersionsError as error:
            print(error, file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
