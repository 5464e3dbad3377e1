#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Asks for processors, takes what there is, and says what became of it:  evolving.sh HOST PORT TOKEN PROCESSORS
# It needs nc, and nothing else that a shell has not.
set -eu

directory=$(mktemp -d)
mkfifo "$directory/to" "$directory/from"
nc "$1" "$2" <"$directory/to" >"$directory/from" &
trap 'kill $! 2>/dev/null || true; rm -rf "$directory"' EXIT
exec 3>"$directory/to" 4<"$directory/from"
cd "$directory"

say() {
    printf '%08d\n' "$(wc -c <"$1")" >&3
    cat "$1" >&3
}

hear() {
    size=$(head -c 9 <&4)
    [ -n "$size" ] && head -c "$(expr "$size" + 0)" <&4 >"$1"
}

field() {
    sed -n "s:.*<$1>\(.*\)</$1>.*:\1:p" "$2" | head -n 1
}

printf 'KOALA-NT 1 %s' "$3" >greeting
say greeting
cat >wish <<END
<NT NT_AgreementID="1" xmlns:k="urn:koala-adapter:negotiation" k:Direction="grow">
  <NT_Initiator>APPLICATION</NT_Initiator>
  <NT_Source>node7</NT_Source>
  <NT_Dest>head</NT_Dest>
  <NT_Status>NT_NEGOTIATION</NT_Status>
  <Resource>
    <Type>CPU</Type>
    <Quantity>$4</Quantity>
    <Usage>NT_REQUIRED</Usage>
    <Negotiability>NT_NEGOTIABLE</Negotiability>
    <Status>NT_NEGOTIATION</Status>
  </Resource>
</NT>
END
say wish

while hear nt; do
    status=$(field NT_Status nt)
    echo "$status: $(field Quantity nt) processors"
    case $status in
        NT_NEGOTIATION) sed 's/NT_NEGOTIATION/NT_ACCEPTED/' nt >answer ;; # a counter-offer: it will do
        NT_ACCEPTED) sed 's/NT_ACCEPTED/NT_COMMITTED/' nt >answer ;;
        NT_COMMITTED) continue ;;
        *) break ;; # they are there, or the negotiation has ended
    esac
    say answer
done
[ "$status" = NT_CONSUMED ]
