#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Grid Engine: every job waits for an outside scheduler (koala wiki serve, koala schedule), users need do nothing.
#
# Install, as a manager, on the qmaster's host: make it executable, then `qconf -mconf` and set
#   jsv_url            script:/etc/koala/sge_jsv.sh
#   jsv_allowed_mod    ac,h,i,e,o,j,M,N,p,w,q_hard,q_soft      (q_hard: the scheduler ties a job to nodes with qalter -q)
# Grid Engine has one bit for the hold of the site and for that of a job's user (a verifier can set no other), so a job
# that came with `qsub -h` is marked in its context. Its user lets it go with `qalter -dc koala_user_hold JOB`.
# Undo: set jsv_url to none, and `koala schedule --give-back CLUSTER`. Simpler, but without the exception below: one line "-h" in
# $SGE_ROOT/$SGE_CELL/common/sge_request; then a user's own `qsub -h` takes the hold away, and the job starts at once.
#
# Jobs whose name begins with one of LEAVE_ALONE go to Grid Engine's own scheduler.
LEAVE_ALONE="debug-"

# The protocol of jsv(1), without the include file of Grid Engine, which needs more than a POSIX shell.
name=""
context=""
own_hold=no
while read -r word rest; do
   case "$word" in
      START) name=""; context=""; own_hold=no; echo "STARTED" ;;
      PARAM)
         case "$rest" in
            "N "*) name="${rest#N }" ;;
            "ac "*) context="${rest#ac }," ;;
            "h "*) own_hold=yes ;;
         esac ;;
      BEGIN)
         held=yes
         for prefix in $LEAVE_ALONE; do
            case "$name" in "$prefix"*) held=no ;; esac
         done
         if [ "$held" = yes ]; then
            echo "PARAM h u"
            [ "$own_hold" = no ] || echo "PARAM ac ${context}koala_user_hold=1"
            echo "RESULT STATE CORRECT held for the scheduler of this site"
         else
            echo "RESULT STATE ACCEPT"
         fi ;;
      QUIT) exit 0 ;;
   esac
done
