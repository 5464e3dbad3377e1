# SPDX-License-Identifier: Apache-2.0
"""Runner ``adaptive`` of launcher ``mpi`` where MPI cannot spawn: each change restarts the program.

The program keeps its state in files of a directory that all nodes share, and ends; mpiexec then starts it on the
members of the other size. All of that happens between the placeholders, over that same directory: each runs a keeper, a
shell that lives as long as its rank is a member. The first keeper runs mpiexec, whose proxies the others take from the
directory. So a rank is one task with one output from the beginning to the end, however often the program is started.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.mpi import PROGRAM_SHELL
from koala_adapter.scheduler.events import Event, RankEnded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import TaskEnd
    from koala_adapter.runners.runner import AddressedLaunch, Application
    from koala_adapter.scheduler.actions import Rank

RANK_SHELL = f"""\
{PROGRAM_SHELL}echo $status >"$KOALA_STATUS"
exit $status
"""

KEEPER = r"""
# Between the placeholders of one job, in a directory of its own that only its owner can write to:
#   members.N    change, point and ranks of the N-th start of the program, in order of their positions
#   proxy.N.R    mpiexec's command for rank R
#   next         written by the program: change, size, point and ranks of the start that is to follow
#   end          the program is over
#   over.R       so is the keeper of rank R
umask 077
shared=$RESIZE_DIRECTORY
start=0
member=no

fail() {
    echo "koala: $1" >&2
    exit 125
}

publish() { # NAME TEXT: others see all of it, or nothing
    printf '%s\n' "$2" >"$shared/.$1" && mv "$shared/.$1" "$shared/$1"
}

await() { # NAME: false when the program is over
    until [ -e "$shared/$1" ]; do
        [ ! -e "$shared/end" ] && [ -d "$shared" ] || return 1
        sleep 0.1
    done
}

run_mpiexec() { # RANK...
    hosts=$(printf ',koala%s' "$@")
    {
        mpiexec.hydra -launcher manual -disable-hostname-propagation -genvnone -localhost "$KOALA_FIRST" \
            -hosts "${hosts#,}" -wdir / -n $# sh -c 'eval "$KOALA_RANK_SHELL"' koala-rank </dev/null ||
            echo "koala: mpiexec ended with status $?" >&2
    } | while IFS= read -r line; do
        case $line in
        "HYDRA_LAUNCH: "*)
            number=${line##*--proxy-id }
            shift_to=$((${number%% *} + 1))
            eval "rank=\${$shift_to}"
            publish "proxy.$start.$rank" "${line#HYDRA_LAUNCH: }"
            ;;
        HYDRA_LAUNCH_END) ;;
        *) printf '%s\n' "$line" ;;
        esac
    done
}

lead() { # what only the first keeper does
    change=-1 point=0
    set -- $KOALA_MEMBERS
    while :; do
        publish "members.$start" "$change $point $*"
        run_mpiexec "$@"
        [ -e "$shared/next" ] || break
        read -r change size point ranks <"$shared/next"
        rm "$shared/next"
        set -- $ranks
        [ $# -gt 0 ] || break
        start=$((start + 1))
    done
    publish end "$start"
}

run_proxy() {
    read -r command <"$shared/proxy.$start.$KOALA_RANK"
    rm -f "$KOALA_STATUS"
    $command </dev/null
    [ -e "$KOALA_STATUS" ] || return 1
    read -r status <"$KOALA_STATUS"
    return "$status"
}

case $KOALA_RANK in
0)
    mkdir "$shared" || fail "$shared cannot be made: working_directory is to be on a file system that all nodes share"
    trap 'rm -rf "$shared"' EXIT
    trap 'exit 143' TERM
    lead &
    ;;
*)
    tries=0
    until [ -d "$shared" ]; do
        [ $((tries += 1)) -lt 600 ] || fail "$shared is not to be seen here: working_directory is to be shared"
        sleep 0.1
    done
    ;;
esac
[ -O "$shared" ] || fail "$shared belongs to somebody else"
status=0
while await "members.$start"; do
    read -r change point ranks <"$shared/members.$start"
    case " $ranks " in
    *" $KOALA_RANK "*)
        member=yes
        unset RESIZE_CHANGE KOALA_APP_RESUME
        if [ "$change" -ge 0 ]; then
            export RESIZE_CHANGE="$change" KOALA_APP_RESUME="$change $point"
        fi
        await "proxy.$start.$KOALA_RANK" || exit 1
        run_proxy
        status=$?
        [ $status -eq 0 ] || exit $status
        ;;
    *) [ $member = no ] || exit 0 ;; # it has left
    esac
    start=$((start + 1))
done
publish "over.$KOALA_RANK" $status
if [ "$KOALA_RANK" = 0 ]; then # the last to end: the job is over then
    wait
    for rank in $ranks; do
        tries=0
        until [ -e "$shared/over.$rank" ] || [ $((tries += 1)) -gt 100 ]; do
            sleep 0.1
        done
    done
fi
exit $status
"""
"""Of each rank. Debian's dash and other POSIX shells with ``test -O`` run it."""


class RestartedMpiRunner(AdaptiveRunner):
    """Runner with a keeper process for each rank; the keepers restart mpiexec with each change of size."""

    def __init__(self, application: Application) -> None:
        """Make the runner of a job. Raises ConfigurationError for a job without a working directory."""
        super().__init__(application)
        if application.job.working_directory is None:
            raise ConfigurationError("the job needs a working_directory that all nodes share")
        self._first = application.ranks

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        return [self._kept(one) for one in super().launches_in(rank)]

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Handle the end of a process; the application ends with the first keeper, which runs mpiexec."""
        events = super().ended(task, end, now)
        if self.rank_of(task) != self._first[0].rank or not end.ok:
            return events
        return [*events, RankEnded(time=now, job_id=self.application.job.id, rank=None, end=end)]

    def _kept(self, one: AddressedLaunch) -> AddressedLaunch:
        job, first = self.application.job, self._first[0]
        environment = {
            **dict(one.launch.environment),
            "KOALA_COMMAND": shlex.join(one.launch.argv),
            "KOALA_DIRECTORY": job.working_directory or "",
            "KOALA_FIRST": first.address or first.host,
            "KOALA_MEMBERS": " ".join(str(member.rank) for member in self._first),
            "KOALA_MPI_RESIZE": "restart",
            "KOALA_RANK_SHELL": RANK_SHELL,
            # The name of the batch differs between state directories.
            "RESIZE_DIRECTORY": f"{job.working_directory}/koala-{job.id}-{first.placeholder.batch}",
        }
        script = f'KOALA_STATUS="${{KOALA_STDOUT%/*}}/status"; export KOALA_STATUS\n{KEEPER}'
        launch = replace(one.launch, argv=("sh", "-c", script, "koala-keeper"), environment=tuple(environment.items()))
        return replace(one, launch=launch)
