# SPDX-License-Identifier: Apache-2.0
"""What the gateway does with files and directories of its host, and what it tells of the user there.

Python 3.6 or newer.
"""

import errno
import grp
import os
import pwd
import queue
import shutil
import socket
import stat
import sys
import tempfile
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, Tuple

    Work = Callable[[], Dict[str, Any]]
    Tell = Callable[[Dict[str, Any]], None]

MOST_LINKS = 40
"""As many as the kernel follows, path_resolution(7)."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


# -- The user here -----------------------------------------------------------------------------------------------


def user_entry() -> "Tuple[str, str, str]":
    """Return login name, home and shell of this user."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a user of a directory that does not answer now
        return os.environ.get("USER", str(os.geteuid())), os.environ.get("HOME", "/"), "/bin/sh"
    return entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh"


def facts(_request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return what the other side is told of this host."""
    user, home, _ = user_entry()
    return {
        "name": socket.gethostname(),
        "user": user,
        "uid": os.geteuid(),
        "home": home,
        "variables": dict(os.environ),
        "python": sys.version.split()[0],
        "interpreter": sys.executable,
    }


# -- Files -------------------------------------------------------------------------------------------------------
# Each function takes a request and returns a result; it may raise OSError.


def programs(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return where programs are."""
    path = request["directory"] or os.environ.get("PATH", DEFAULT_PATH)
    found = ((name, shutil.which(name, path=path)) for name in request["names"])
    return {name: place for name, place in found if place}


def resolved(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return a path with all links followed; empty where there is nothing."""
    path = os.path.realpath(request["path"])
    return {"path": path if os.path.exists(path) else ""}


def list_directory(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the names in a directory."""
    return {"names": os.listdir(absolute(request))}


def absolute(request: "Dict[str, Any]") -> str:
    """Return a path: one that is not absolute is in the user's directory for koala here."""
    base = os.path.expanduser(str(request.get("base", "~/.koala")))
    return os.path.join(base, str(request["path"]))


def make_directory(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Make a directory with mode 0700, unless another user could replace a part of its path."""
    path = os.path.abspath(absolute(request))
    require_strong(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
            # Another gateway of ours was faster.
    require_strong(path)
    return {"path": path, "mode": stat.S_IMODE(os.stat(path).st_mode)}


def require_strong(path: str) -> None:
    """Raise PermissionError where another user could put something else in the place of a part of a path.

    As ssh does (StrictModes, sshd_config(5)): each directory on the way belongs to root or to this user, and no others
    can write to it; in a sticky one, what is used belongs to this user. Links are followed one by one under this rule.
    """
    place, ahead, links = "/", os.path.abspath(path).split("/"), 0
    while True:
        found = os.lstat(place)
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "{} belongs to another user".format(place), path)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            place, ahead = "/" if target.startswith("/") else os.path.dirname(place), target.split("/") + ahead
            continue
        ahead = ahead[next((number for number, part in enumerate(ahead) if part not in ("", ".")), len(ahead)) :]
        if ahead and ahead[0] == "..":
            place, ahead = os.path.dirname(place), ahead[1:]
            continue
        entry = os.path.join(place, ahead[0]) if ahead else ""
        exists = bool(entry) and os.path.lexists(entry)
        writable = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid))
        if writable and not (found.st_mode & stat.S_ISVTX and exists):
            raise PermissionError(errno.EPERM, "others can write to {}".format(place), path)
        if not exists:
            return
        place, ahead = entry, ahead[1:]


def is_own_group(number: int) -> bool:
    """Tell whether a group is root's, or this user's own, as many systems make one for each user."""
    if number == 0:
        return True
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return False
    user = user_entry()[0]
    return group.gr_name == user and not set(group.gr_mem) - {user, "root"}


def write_private(request: "Dict[str, Any]", content: "IO[bytes]") -> "Dict[str, Any]":
    """Write a new file that only this user can read, in place of one that is there."""
    path = absolute(request)
    try:
        os.unlink(path)
    except FileNotFoundError:
        make_directory({"path": os.path.dirname(path)})  # it may have been removed because it was empty
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())
    return {}


def remove(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Remove a file; no error when it is gone. Directories of koala that are empty then go, too."""
    path, base = absolute(request), absolute(dict(request, path=""))
    try:
        os.unlink(path)
    except FileNotFoundError:
        return {}
    path = os.path.dirname(path)
    while path.startswith(base) and path != base:
        try:
            os.rmdir(path)
        except OSError:
            break  # it has something else in it
        path = os.path.dirname(path)
    return {}


SIMPLE: "Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]]" = {
    "facts": facts,
    "programs": programs,
    "resolved": resolved,
    "list_directory": list_directory,
    "make_directory": make_directory,
    "remove": remove,
}


def failure(error: OSError) -> "Dict[str, Any]":
    """Return the result that tells of an error."""
    return {"errno": error.errno or errno.EIO, "error": error.strerror or str(error), "path": str(error.filename or "")}


def unnamed_file() -> "IO[bytes]":
    """Return an empty file that is gone when it is closed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("koala"), "w+b")
    return tempfile.TemporaryFile()


class Files:
    """Threads for what may wait for a file system: a hung server of files must hold up no command and no agent.

    Transfers of large files have one of their own, so that they do not hold up job scripts.
    """

    def __init__(self) -> None:
        self._waiting: "Dict[bool, queue.Queue[Tuple[Work, Tell]]]" = {}
        self._done: "queue.Queue[Tuple[Tell, Dict[str, Any]]]" = queue.Queue()
        self.readable, self._signal = os.pipe()

    def ask(self, work: "Work", tell: "Tell", *, transfer: bool = False) -> None:
        """Have something done, and ``tell`` called with its result by :meth:`finish`; in order, but for transfers."""
        if transfer not in self._waiting:
            waiting: "queue.Queue[Tuple[Work, Tell]]" = queue.Queue()
            self._waiting[transfer] = waiting
            threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        self._waiting[transfer].put((work, tell))

    def ask_apart(self, work: "Work", tell: "Tell") -> None:
        """Have something done in a thread of its own, which may take long."""
        threading.Thread(target=lambda: self._do(work, tell), daemon=True).start()

    def finish(self, _mask: int = 0) -> None:
        """Tell the results of what is done; called when ``readable`` is."""
        os.read(self.readable, 4096)
        while not self._done.empty():
            tell, result = self._done.get()
            tell(result)

    def post(self, tell: "Tell", result: "Dict[str, Any]") -> None:
        """Have ``tell`` called by :meth:`finish`. Any thread may call this."""
        self._done.put((tell, result))
        os.write(self._signal, b"!")

    def _work(self, waiting: "queue.Queue[Tuple[Work, Tell]]") -> None:
        while True:
            self._do(*waiting.get())

    def _do(self, work: "Work", tell: "Tell") -> None:
        try:
            result = work()
        except OSError as error:
            result = failure(error)
        except (LookupError, TypeError, ValueError) as error:
            result = failure(OSError(errno.EINVAL, "bad request: {}".format(error)))
        self.post(tell, result)
