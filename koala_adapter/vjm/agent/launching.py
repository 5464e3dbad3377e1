# SPDX-License-Identifier: Apache-2.0
"""Starting a process for a task."""

import contextlib
import errno
import os
import signal
import socket

from koala_adapter.vjm.agent.node import random_name, raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Dict, List, Tuple, Union

    Child = Union["Spawned", subprocess.Popen[bytes]]

MISSING = (errno.ENOENT, errno.ENOTDIR)

# What batch systems and MPI starters leave in the environment of a job: a task that sees it takes itself for a step of
# that job (srun, mpiexec and MPI libraries do), or for a batch job.
FOREIGN_PREFIXES = (
    "KOALA_", "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SGE_", "PBS_", "PMI_", "PMI2_", "PMIX_", "OMPI_",
    "PRTE_", "HYDRA_", "HYDI_", "MPIR_",
)  # fmt: skip
FOREIGN_NAMES = frozenset((
    "ARC", "BATCHJOB_ID", "BATCH_JOBID", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "LSB_JOBID", "NHOSTS",
    "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED", "TASK_ID",
))  # fmt: skip


IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python; not by what a task runs


class LaunchError(Exception):
    """A task cannot be started; ``code`` is what a shell would end with (127: not found, 126: cannot be run)."""

    def __init__(self, detail: str, code: int = 126) -> None:
        Exception.__init__(self, detail)
        self.code = code


def task_environment(base: "Dict[str, str]", added: "List[List[str]]") -> "Dict[str, str]":
    """Return the node's environment without the traces of its batch system, with ``added`` on top."""
    environment = {
        name: value
        for name, value in base.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }
    environment.update((name, value) for name, value in added)
    return environment


def file_identity(status: os.stat_result) -> "Tuple[int, int, int]":
    """Return what changes when a file does."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_file(directory: str, target: str, mode: int, content: bytes) -> "Tuple[int, int, int]":
    """Write an input file below ``directory``, following no link; other ranks may write the same one just now.

    Return its identity.
    """
    parts = target.split("/")
    if "\0" in target or any(part in ("", ".", "..") for part in parts):
        raise LaunchError(f"the input file {target!r} is not a path below the working directory")
    place = os.open(raw(directory), os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(raw(part), 0o755, dir_fd=place)
            inner = os.open(raw(part), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        temporary = ".koala-" + random_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o755)
            identity = file_identity(os.fstat(file.fileno()))
        os.rename(raw(temporary), raw(parts[-1]), src_dir_fd=place, dst_dir_fd=place)
        return identity
    except OSError as error:
        raise LaunchError(f"cannot write the input file {target!r} in {directory}: {error.strerror}") from error
    finally:
        os.close(place)


def keep_descriptors() -> None:
    """Keep from tasks what the batch system left open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:  # noqa: PLR2004 - stdin, stdout and stderr
            with contextlib.suppress(OSError):  # that of the list itself is gone
                os.set_inheritable(int(name), False)  # noqa: FBT003 - the library's own way


class Spawned:
    """A child that runs a program."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        """Reap it."""
        os.waitpid(self.pid, 0)


def start(argv: "List[str]", working_directory: str, environment: "Dict[str, str]", writers: "List[int]") -> "Child":
    """Start a process in a session of its own."""
    begin = spawn if hasattr(os, "posix_spawn") else popen
    try:
        return begin(
            [raw(argument) for argument in argv],
            raw(working_directory),
            {raw(name): raw(value) for name, value in environment.items()},
            writers,
        )
    except FileNotFoundError:
        there = os.path.exists(raw(os.path.join(working_directory, argv[0]))) if "/" in argv[0] else False
        what = "the interpreter of {} was not found" if there else "{}: command not found"
        raise LaunchError(what.format(argv[0]) + f" on {socket.gethostname()}", 126 if there else 127) from None
    except OSError as error:
        raise LaunchError(f"{argv[0]} cannot be run on {socket.gethostname()}: {error.strerror}") from error


def spawn(argv: "List[bytes]", directory: bytes, environment: "Dict[bytes, bytes]", writers: "List[int]") -> "Child":
    """Start a process by what the C library has for it (Python 3.8): to import ``subprocess`` takes longer."""
    actions: "List[Any]" = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, writer, number) for number, writer in enumerate(writers, 1)]
    programs = [argv[0]]
    if b"/" not in argv[0]:
        places = os.get_exec_path(environment)  # type: ignore[arg-type] # it takes bytes, too
        programs = [os.path.join(os.fsencode(place), argv[0]) for place in places]
    fault = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    back = current_directory()
    try:
        os.chdir(directory)  # a new process begins where we are
        for program in programs:
            try:
                os.stat(program)  # to find out by a start takes longer
                return Spawned(
                    os.posix_spawn(program, argv, environment, file_actions=actions, setsid=True, setsigdef=IGNORED)
                )
            except NotImplementedError:  # an old C library
                return popen(argv, directory, environment, writers)
            except OSError as error:  # as a shell: the next may be one that can be run
                if fault.errno in MISSING:
                    fault = error
        raise fault
    finally:
        os.fchdir(back)
        os.close(back)


def current_directory() -> int:
    """Return a descriptor of it; of the root directory when it is there no more, or not for us."""
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return os.open("/", os.O_RDONLY | os.O_DIRECTORY)


def popen(
    argv: "List[bytes]", directory: bytes, environment: "Dict[bytes, bytes]", writers: "List[int]"
) -> "subprocess.Popen[bytes]":
    """Start a process."""
    import subprocess

    return subprocess.Popen(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=writers[0],
        stderr=writers[1],
        start_new_session=True,
    )
