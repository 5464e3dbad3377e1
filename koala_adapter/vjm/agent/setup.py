# SPDX-License-Identifier: Apache-2.0
"""Lines of a shell that run before the program of a task, which then starts in the environment that they leave.

The shell becomes the program by ``exec``, so process id, session, signals and exit status are the program's own. It is
bash where the node has one, because it reads ``BASH_ENV``, imports functions from the environment and knows ``source``;
else ``/bin/sh``. It is no login shell: that would set PATH anew and run the user's own files, which may print or wait.
Where ``module`` is not known then, the files of ``/etc/profile.d`` are read, which define it at most sites.

The text comes by the environment, which no other user can read. The program and its arguments stay apart from it: the
lines see no arguments, so a sourced file cannot take those of the program for its own, or change them.
"""

import os
import re
import shlex
import socket

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

VARIABLE = "KOALA_SETUP"
NAME = "setup"  # in front of what the shell itself says
STATE = "setup"  # the file in the task's directory that tells how far the shell is
BASHES = ("/bin/bash", "/usr/bin/bash")
LINES = 5  # of the last words that are told
LONGEST = 100  # characters of a line that are told

_BEGIN = """\
unset {variable}
koala_at() {{ echo "$1" >|{state}; }}
koala_at 0
command -v module >/dev/null 2>&1 || for koala_file in /etc/profile.d/*.sh; do
    [ ! -r "$koala_file" ] || . "$koala_file" >/dev/null 2>&1
done
"""
_LINE = """\
koala_at {number}
eval {line} || exit
"""
_LIBRARY = """\
case ${{PYTHONPATH-}} in
{library} | {library}:*) ;;
*) export PYTHONPATH={library}"${{PYTHONPATH:+:$PYTHONPATH}}" ;;
esac
"""
_BASH = """\
koala_program=("$@")
set --
{lines}koala_at end
shopt -s execfail
exec -- "${{koala_program[@]}}"
koala_status=$?
koala_at program
exit $koala_status
"""
_SH = """\
koala_setup() {{
{lines}}}
koala_setup
koala_at end
exec "$@"
"""
"""A function has arguments of its own; there is no ``declare`` here, whose variables would be its own, too."""


def with_setup(
    argv: "Sequence[str]", lines: "Sequence[str]", state: str, library: "Optional[str]", environment: "Dict[str, str]"
) -> "List[str]":
    """Return a shell command that runs setup lines and then ``argv``; the lines go into the environment.

    ``state``: a file for `failure`. ``library``: directory with which PYTHONPATH is to begin whatever the lines do.
    """
    bash = _bash(environment)
    text = _BEGIN.format(variable=VARIABLE, state=shlex.quote(state))
    text += "".join(_LINE.format(number=n, line=shlex.quote(line)) for n, line in enumerate(lines, 1))
    if library is not None:
        text += _LIBRARY.format(library=shlex.quote(library))
    environment[VARIABLE] = (_BASH if bash else _SH).format(lines=text)
    return [bash or "/bin/sh", "-c", f'eval "${VARIABLE}"', NAME, *argv]


def _bash(environment: "Dict[str, str]") -> "Optional[str]":
    places = [os.path.join(one, "bash") for one in os.get_exec_path(environment)]
    return next((path for path in (*BASHES, *places) if os.access(path, os.X_OK)), None)


def failure(
    state: str, argv: "Sequence[str]", lines: "Sequence[str]", code: int, stderr: bytes
) -> "Optional[Tuple[str, int]]":
    """Return the failed setup line, its last output and exit code; None when the program was started."""
    try:
        with open(state) as file:
            at = file.read().strip()
    except OSError:
        return None
    if at == "end":
        return None
    if at == "program":
        what = f"{argv[0]} cannot be run after setup"
    elif at.isdigit() and 0 < int(at) <= len(lines):
        line = lines[int(at) - 1]
        shown = line if len(line) <= LONGEST else line[:LONGEST] + "..."
        what = f"setup line {at} ({shown}) ended with status {code}"
    else:
        what = f"reading /etc/profile.d ended with status {code}"
    own = re.compile(rf"^{NAME}: (?:line )?\d+: ")  # the number of a line in a text that no user has seen
    said = [own.sub("", one.strip()) for one in stderr.decode("utf-8", "replace").split("\n")]
    words = "; ".join([one for one in said if one][-LINES:])
    return f"{what} on {socket.gethostname()}" + (f": {words}" if words else ""), code or 1
