# SPDX-License-Identifier: Apache-2.0
"""`make test-versions`: unit tests, kit, behaviour, `koala schedule` and WIKI tests on other releases of Debian.

Each release has its own Slurm and Python, and lives in a folder that debootstrap(8) makes in two minutes. Each command
below it has namespaces of its own for mounts and processes: with its end, or with Ctrl-C, no mount and no process of it
stays behind. Where the machine cannot do this, each release is skipped, with what is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import IO

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
    "tests/real/test_schedule_slurm.py",
    "tests/real/test_schedule_slurm_needs.py",
    "tests/real/test_wiki_slurm.py",
)
ON_GRID_ENGINE = (
    "tests/real/test_sge_plugin.py",
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
mount --types proc proc "$root/proc"
for each in sys dev; do mount --rbind /$each "$root/$each"; done
chroot "$root" "$@"
"""
"""The shell stays, as the first process there: it buries what others leave, as init(8) does."""

ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")
"""Runs a command in namespaces of its own; its end is that of all processes there."""

ENDS_WITHIN = 60.0
"""Seconds for tests to end what they have started, after Ctrl-C."""

TELLS_EVERY = 60.0
"""Seconds between two lines that say how far the tests are."""

PERCENT = re.compile(r"\[ *([0-9]+%)\]")


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
            bootstrap = ("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", self.name)
            # The script for sid serves all of them, those too that this machine's debootstrap does not know by name.
            self._do(*ALONE, "--mount-proc", *bootstrap, str(self.root), MIRROR, "sid")
            # A mirror that lags offers lists past their date. Their signatures are checked all the same.
            (self.root / "etc/apt/apt.conf.d/90lagging-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
            ready.touch()
        self._copy_from_the_host()
        self._copy_source()
        # A folder that was made by an earlier list of packages gets what is new in it.
        self._do(*self._inside("env", "--unset=KOALA_REQUIRE_REAL", ".ci/install_debian", *PACKAGES))
        self._do(*self._inside(".ci/make_venv", "/opt/venv"))
        pip = ("/opt/venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        self._do(*self._inside(*pip, "--editable", ".[test]", "--editable", "plugins/koala-experiments"))

    def versions(self) -> str:
        """Say which Python and Slurm it has."""
        ask = self._inside("sh", "-c", "/opt/venv/bin/python --version; dpkg-query --show slurmctld")
        said = subprocess.run(ask, capture_output=True, text=True, check=False)
        return ", ".join(" ".join(line.split()) for line in said.stdout.splitlines())

    def test(self) -> bool:
        """Run unit tests and real ones side by side; say whether none failed.

        Their reports go where those of `make test` are. A release may have no Grid Engine; each has a Slurm.
        """
        real = ON_SLURM
        if (self.root / "usr/lib/gridengine/sge_qmaster").exists():
            real += ON_GRID_ENGINE
        else:
            real += ("-k", "not grid_engine")
            say(f"{self.name}: has no Grid Engine, whose tests are left out")
        parts = {"unit": UNIT, "real": ("-p", "no:randomly", "-n", "3", *real)}
        logs = {part: ROOTS / f"{self.name}-{part}.log" for part in parts}
        say(f"{self.name}: testing, five minutes or more (logs: {', '.join(map(str, logs.values()))})")
        began = time.monotonic()
        with ExitStack() as stack:
            running = {}
            for part, arguments in parts.items():
                log = stack.enter_context(logs[part].open("wb"))
                running[part] = stack.enter_context(child(self._pytest(part, arguments), output=log))
            self._wait(running, logs, began)
        statuses = {part: process.returncode for part, process in running.items()}
        for part, status in statuses.items():
            report = self.root / "koala" / f"report-{part}.xml"
            if report.exists():
                shutil.copy(report, REPORTS / f"{self.name}-{part}.xml")
            if status:
                say(f"{self.name}: {part}: FAILED, the end of {logs[part]}:\n{last_lines(logs[part])}")
        say(f"{self.name}: {'FAILED' if any(statuses.values()) else 'passed'} after {minutes(began)}")
        return not any(statuses.values())

    def run(self, arguments: Sequence[str]) -> bool:
        """Run the tests that are named, before the eyes of who asks; say whether none failed."""
        with child(self._inside("/opt/venv/bin/python", "-m", "pytest", *arguments)) as process:
            return process.wait() == 0

    def _wait(self, running: Mapping[str, subprocess.Popen[bytes]], logs: Mapping[str, Path], began: float) -> None:
        """Return when all have ended; say now and then how far each is."""
        told = began
        while any(process.poll() is None for process in running.values()):
            time.sleep(1)
            if time.monotonic() > told + TELLS_EVERY:
                told = time.monotonic()
                far = ", ".join(f"{part} {percent(logs[part])}" for part in running)
                say(f"{self.name}: {far} after {minutes(began)}")

    def _pytest(self, part: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        usual = ("--quiet", "--dist", "worksteal", f"--junit-xml=report-{part}.xml", f"--basetemp=/tmp/{part}")
        return self._inside("/opt/venv/bin/python", "-m", "pytest", *usual, *arguments)

    def _inside(self, *command: str) -> tuple[str, ...]:
        """Return a command that runs below the root, in the folder of the source."""
        enter = ("env", "--chdir=/koala", "LC_ALL=C.UTF-8", "KOALA_REQUIRE_REAL=1", *command)
        return (*ALONE, "sh", "-ec", MOUNT_AND_ENTER, "sh", str(self.root), *enter)

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
        with self.log.open("ab") as log, child(command, output=log) as process:
            process.wait()
        if process.returncode:
            message = f"{self.name}: could not be made ready; the end of {self.log}:\n{last_lines(self.log)}"
            raise VersionsError(message)


@contextmanager
def child(command: Sequence[str], *, output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a session of its own; at the end of the context it is over, with all that it has started.

    The terminal does not interrupt it, we do: so that it has the time to end its daemons and to say what it did.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(ENDS_WITHIN)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def say(text: str) -> None:
    """Print at once, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def minutes(began: float) -> str:
    """Return the time since a moment in minutes and seconds."""
    whole, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{whole} min {seconds} s"


def percent(log: Path) -> str:
    """Return how far pytest says it is."""
    found = PERCENT.findall(log.read_text(errors="replace"))
    return found[-1] if found else "0%"


def last_lines(log: Path) -> str:
    """Return the end of what a command has printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def missing() -> str:
    """Return what keeps this machine from making releases of Debian; nothing where it can."""
    if os.geteuid() != 0:
        return "to be root"
    programs = [name for name in ("debootstrap", "unshare", "git") if shutil.which(name) is None]
    if programs:
        return f"{', '.join(programs)} (apt-get install {' '.join(programs)})"
    entered = subprocess.run(("/usr/bin/env", *ALONE, "true"), capture_output=True, text=True, check=False)
    return "" if entered.returncode == 0 else f"namespaces of its own ({entered.stderr.strip()})"


def main() -> int:
    """Test the releases that are named; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE", help=f"by default {RELEASES}")
    given = sys.argv[1:]
    own = given[: given.index("--")] if "--" in given else given
    parser.epilog = "What follows -- is handed to pytest in place of the tests that are usually run."
    releases = [Release(name) for name in parser.parse_args(own).releases]
    lacking = missing()
    if lacking:
        required = os.environ.get("KOALA_REQUIRE_REAL") == "1"
        for release in releases:
            say(f"{release.name}: {'FAILED' if required else 'skipped'}, missing: {lacking}")
        return int(required)
    ROOTS.mkdir(parents=True, exist_ok=True)
    REPORTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    for release in releases:
        for report in REPORTS.glob(f"{release.name}-*.xml"):
            report.unlink()
        try:
            began = time.monotonic()
            say(f"{release.name}: making it ready, half a minute, the first time some (log: {release.log})")
            release.make()
            say(f"{release.name}: {release.versions()}, ready after {minutes(began)}")
            failed |= not (release.run(given[len(own) + 1 :]) if len(own) < len(given) else release.test())
        except VersionsError as error:
            say(str(error))
            failed = True
        except KeyboardInterrupt:
            say(f"{release.name}: interrupted; nothing of it runs any more")
            return 130
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
