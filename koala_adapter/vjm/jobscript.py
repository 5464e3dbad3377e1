# SPDX-License-Identifier: Apache-2.0
"""The job script of a placeholder: finds a Python on the node and runs the agent, which it carries inside.

Agent, configuration and token go to Python by its standard input, so that nothing of them shows in a process listing,
in the environment of the job, or in a file on the node other than the LRM's own copy of the script. Where the script
can read that copy, it is the standard input itself: bash keeps a here-document of this size in a temporary file, and a
node whose /tmp is full or read-only would run no agent. A script that has no file, such as one that comes through a
pipe, is the standard input of bash, which has read no further than the line that starts Python: the rest is left for
that. Other shells, such as dash, read ahead, but pass a here-document through a pipe.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources

from koala_adapter.vjm import agent

# -- The agent as one file -----------------------------------------------------------------------------------
# The text of its modules, behind a few lines that import them from there.

_LOADER = "modules"
"""The module that imports the others."""

_BEGINNING = """\


import gc

gc.disable()  # all that is imported stays: looking for garbage in it would cost a tenth of the start
modules = AgentModules()
sys.meta_path.insert(0, modules)
modules.texts["koala_adapter"] = modules.texts["koala_adapter.vjm"] = ""
"""

_MODULE = """\
modules.texts["{name}"] = r'''{text}'''
"""
"""Raw, so that it stands here as it stands in its file; a test holds that no module has three single quotes."""

_END = """\
import os
from koala_adapter.vjm.agent.holding import main

status = main(CONFIGURATION)  # which the job script has set
os._exit(status)  # all is said and flushed; taking apart what was imported would only take time
"""


@cache
def agent_file() -> str:
    """Return the agent joined into one file; equal modules give equal texts."""
    found = {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in resources.files(agent).iterdir()
        if entry.name.endswith(".py")
    }
    loader = found.pop(_LOADER)
    package = agent.__name__
    modules = [
        _MODULE.format(name=package if name == "__init__" else f"{package}.{name}", text=text)
        for name, text in sorted(found.items())
    ]
    return "\n".join([loader + _BEGINNING, *modules, _END]).rstrip("\n")


# -- The script ----------------------------------------------------------------------------------------------

END_OF_AGENT = "END_OF_KOALA_AGENT"
END_MARGIN = 10.0
"""Seconds, see `AgentSettings.end_margin`."""

SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python")
"""Each is a Python 3.4 or newer where it is there. RHEL 8 has only ``platform-python`` by default."""
OTHER_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(14, 5, -1)), "/usr/local/bin/python3")
"""Each may be anything, such as a script that itself looks for a Python: it is tried before it is relied on."""

_PROBE = "import sys, _ssl; sys.exit(sys.version_info < (3, 6))"

_START = r'''
import os, sys
read = r"""sys.stdin.buffer.read().rpartition(b"<<\x27{end}\x27\n")[2].partition(b"\n{end}\n")[0]"""
try:
    import _ssl
    usable = sys.version_info >= (3, 6)
except ImportError:
    usable = False
if usable:
    exec(compile(eval(read), "koala agent", "exec"))
for python in sys.argv[1:]:
    if os.system("%s -I -S -c \"{probe}\" </dev/null >/dev/null 2>&1" % python) == 0:
        os.execlp(python, python, "-I", "-S", "-B", "-c", "import sys; exec(%s)" % read)
sys.stderr.write("koala agent: no usable Python 3.6 or newer on %s (PATH=%s); looked for: %s\n" % (
    os.uname()[1], os.environ.get("PATH"), " ".join(sys.argv[1:])))
sys.exit(127)'''.lstrip()
"""What the first Python that is there runs, however old it is: the agent, or another Python that can run the agent.

Its input is either the text of the here-document or the script as a whole, of which that text is a part.
"""

_TEMPLATE = """\
#!/bin/sh
{title}
{words}# What the PATH has may be a script that starts several programs: the system's own Python starts at once.
python=
for one in {system}; do
    if [ -x "$one" ]; then python=$one; break; fi
done
for one in {others}; do
    if [ -n "$python" ]; then break; fi
    # _ssl alone, because the whole of ssl takes three times as long, and a node may start many placeholders at once.
    if "$one" -I -S -c '{probe}' </dev/null >/dev/null 2>&1; then
        python=$one
    fi
done
if [ -z "$python" ]; then
    echo "koala agent: no usable Python 3.6 or newer on $(uname -n) (PATH=$PATH); looked for: {system} {others}" >&2
    exit 127
fi
# It looks for itself whether it can run the agent, and hands over to another one if not.
# -I -S: nothing is imported from the directory or the environment of the job, where another user may have put it.
start='{start}'
# A name without a slash would be looked for in the working directory, where it may be another user's file.
case $0 in
    */*)
        if {{ read -r one && read -r one && [ "$one" = {quoted_title} ]; }} 2>/dev/null <"$0"; then
            exec "$python" -I -S -B -c "$start" {system} {others} <"$0"
        fi ;;
esac
# Bash that reads its commands from a pipe has read up to this line, and Python reads the rest. Bash would keep a
# here-document in a temporary file, which needs a place.
case ${{BASH_VERSION:+$-}} in
    *s*) exec "$python" -I -S -B -c "$start" {system} {others} ;;
esac
exec "$python" -I -S -B -c "$start" {system} {others} <<'{end}'
CONFIGURATION = {configuration!a}
{agent}
{end}
"""

_TITLE = (
    "# koala-adapter: a placeholder of {batch}. "
    "It holds one slot and ends by itself when its koala service no longer contacts it."
)

_WORDS = """\
# What is said here goes into a new file in a directory that only we can write to, if this node has it; else nowhere.
# So no other user can put a link or a pipe in its place.
private() {{
    [ -O . ] && case "$(ls -ld .)" in d????-??-*) true ;; *) false ;; esac
}}
index={index}
words={batch}.$index.out here=$(pwd) mask=$(umask)
umask 077
if cd -P {directory} 2>/dev/null \\
    && {{ private || {{ mkdir {batch}.$index && cd -P {batch}.$index && private; }}; }} 2>/dev/null \\
    && [ ! -e "$words" ] && ( set -C && : >"$words" ) 2>/dev/null; then
    exec >>"$words" 2>&1
fi
umask "$mask"
cd "$here" 2>/dev/null || cd /
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Configuration of a batch's agents, as its script has it."""

    batch: str
    """In printable ASCII, without blanks."""
    host: str
    """Name or address by which the nodes reach the control center."""
    port: int
    fingerprint: str
    """SHA-256 of the control center's certificate (DER), in hexadecimal."""
    lease: float
    """Seconds without contact after which an agent ends by itself; a Welcome may change it."""
    walltime: float | None
    """Seconds that the LRM was asked for."""
    token: str | None = field(default=None, repr=False)
    """Secret of the batch, in printable ASCII. None: it is in ``token_file``, and anybody may read the script."""
    token_file: str | None = None
    """Path on the nodes of a file of mode 0600, owned by the user, that holds the token."""
    end_margin: float = END_MARGIN
    """Seconds before the end of the walltime at which an agent ends its tasks, so that their last words arrive; never
    more than half of the time that it has."""
    await_suspended: bool = False
    """Time in which its processes are stopped does not count for the lease."""


def render_job_script(
    *,
    agent: AgentConfig,
    array_index_variable: str | None,
    job_id_variable: str | None,
    words_directory: str | None = None,
) -> str:
    """Return the complete POSIX shell script.

    The two names are those of the environment variables in which the LRM tells a job its index within the array
    (``SLURM_ARRAY_TASK_ID``, ``SGE_TASK_ID``; None or unset on the node: index 1) and its id (``SLURM_JOB_ID``,
    ``JOB_ID``). In ``words_directory``, where the node has it, script and agent keep what they say themselves, in
    ``BATCH.INDEX.out``, or ``BATCH.INDEX/BATCH.INDEX.out`` when others can write there, too.
    """
    configuration = asdict(agent) | {
        "array_index_variable": array_index_variable,
        "job_id_variable": job_id_variable,
    }
    title = _TITLE.format(batch=agent.batch)
    return _TEMPLATE.format(
        title=title,
        quoted_title=shlex.quote(title),
        words="" if words_directory is None else _words(agent.batch, array_index_variable, words_directory),
        system=" ".join(SYSTEM_PYTHONS),
        others=" ".join(OTHER_PYTHONS),
        probe=_PROBE,
        start=_START.format(probe=_PROBE, end=END_OF_AGENT),
        end=END_OF_AGENT,
        configuration=json.dumps(configuration),
        agent=agent_file(),
    )


def _words(batch: str, array_index_variable: str | None, directory: str) -> str:
    index = "1" if array_index_variable is None else f"${{{array_index_variable}:-1}}"
    return _WORDS.format(index=index, batch=shlex.quote(batch), directory=shlex.quote(directory))
