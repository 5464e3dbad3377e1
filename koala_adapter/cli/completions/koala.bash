# SPDX-License-Identifier: Apache-2.0
# Made by docs/reference.py from the commands; do not edit.
_koala() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local at=koala word i words=() values=() files=no
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [[ $word == -- ]] && { compopt -o default; COMPREPLY=(); return; }
        case "$at $word" in
            "koala run"|"koala submit"|"koala sweep"|"koala plan"|"koala script"|"koala status"|"koala top"|"koala explain"|"koala logs"|"koala resize"|"koala cancel"|"koala clusters"|"koala report"|"koala negotiations"|"koala demo"|"koala init"|"koala check"|"koala conf"|"koala docs"|"koala completion"|"koala serve"|"koala schedule"|"koala wiki"|"koala wiki ask"|"koala wiki serve"|"koala metrics"|"koala reap"|"koala clean"|"koala simulate"|"koala experiment"|"koala experiment list"|"koala experiment run"|"koala app"|"koala negotiation"|"koala negotiation access"|"koala negotiation check"|"koala negotiation schema"|"koala schema") at="$at $word" ;;
        esac
    done
    case "$at,$prev" in
        "koala,--site") files=yes; words=(-) ;;
        "koala,--state") files=yes; words=(-) ;;
        "koala run,--processors" | "koala run,-n") words=(-) ;;
        "koala run,--walltime" | "koala run,-t") words=(-) ;;
        "koala run,--cluster" | "koala run,-C") words=(-) ;;
        "koala run,--save") files=yes; words=(-) ;;
        "koala submit,--processors" | "koala submit,-n") words=(-) ;;
        "koala submit,--walltime" | "koala submit,-t") words=(-) ;;
        "koala submit,--cluster" | "koala submit,-C") words=(-) ;;
        "koala submit,--save") files=yes; words=(-) ;;
        "koala sweep,--maximum" | "koala sweep,-n") words=(-) ;;
        "koala sweep,--repeats") words=(-) ;;
        "koala sweep,--grace") words=(-) ;;
        "koala sweep,--walltime" | "koala sweep,-t") words=(-) ;;
        "koala sweep,--cluster" | "koala sweep,-C") words=(-) ;;
        "koala sweep,--save") files=yes; words=(-) ;;
        "koala sweep,--resume") words=(-) ;;
        "koala script,--cluster" | "koala script,-c") words=(-) ;;
        "koala status,--limit" | "koala status,-n") words=(-) ;;
        "koala top,--interval") words=(-) ;;
        "koala explain,--cluster" | "koala explain,-c") words=(-) ;;
        "koala logs,--component" | "koala logs,-c") words=(-) ;;
        "koala logs,--rank" | "koala logs,-r") words=(-) ;;
        "koala resize,--component") words=(-) ;;
        "koala report,--since") words=(-) ;;
        "koala report,--out" | "koala report,-o") files=yes; words=(-) ;;
        "koala negotiations,--job" | "koala negotiations,-j") words=(-) ;;
        "koala negotiations,--limit" | "koala negotiations,-n") words=(-) ;;
        "koala init,--output" | "koala init,-o") files=yes; words=(-) ;;
        "koala check,--timeout") words=(-) ;;
        "koala check,--cluster" | "koala check,-c") words=(-) ;;
        "koala docs,--examples") files=yes; words=(-) ;;
        "koala serve,--end-when-idle") words=(-) ;;
        "koala serve,--metrics-port") words=(-) ;;
        "koala schedule,--cluster" | "koala schedule,-c") words=(-) ;;
        "koala schedule,--give-back") words=(-) ;;
        "koala schedule,--policy" | "koala schedule,-p") values=(fcfs easy conservative firstfit bestfit greedy metacluster); words=(-) ;;
        "koala schedule,--metric") values=(processors processor-seconds seconds); words=(-) ;;
        "koala schedule,--depth") words=(-) ;;
        "koala schedule,--weights") words=(-) ;;
        "koala schedule,--default-walltime") words=(-) ;;
        "koala schedule,--patience") words=(-) ;;
        "koala schedule,--ask-socket") files=yes; words=(-) ;;
        "koala schedule,--metrics-port") words=(-) ;;
        "koala wiki ask,--host") words=(-) ;;
        "koala wiki ask,--port") words=(-) ;;
        "koala wiki ask,--key-file") files=yes; words=(-) ;;
        "koala wiki ask,--dialect") values=(wiki wiki2); words=(-) ;;
        "koala wiki ask,--timeout") words=(-) ;;
        "koala wiki serve,--cluster") words=(-) ;;
        "koala wiki serve,--key-file") files=yes; words=(-) ;;
        "koala wiki serve,--listen") words=(-) ;;
        "koala wiki serve,--port") words=(-) ;;
        "koala wiki serve,--peer") words=(-) ;;
        "koala wiki serve,--peer-user") words=(-) ;;
        "koala wiki serve,--dialect") values=(wiki wiki2); words=(-) ;;
        "koala wiki serve,--cache") words=(-) ;;
        "koala wiki serve,--retention") words=(-) ;;
        "koala wiki serve,--reply-within") words=(-) ;;
        "koala wiki serve,--start-reply-within") words=(-) ;;
        "koala wiki serve,--oldest") words=(-) ;;
        "koala wiki serve,--start-within") words=(-) ;;
        "koala wiki serve,--event-host") words=(-) ;;
        "koala wiki serve,--metrics-port") words=(-) ;;
        "koala wiki serve,--event-port") words=(-) ;;
        "koala metrics,--port") words=(-) ;;
        "koala reap,--timeout") words=(-) ;;
        "koala clean,--older") words=(-) ;;
        "koala simulate,--policy" | "koala simulate,-p") values=(fcfs easy conservative firstfit bestfit greedy metacluster); words=(-) ;;
        "koala simulate,--platform") words=(-) ;;
        "koala simulate,--processors") words=(-) ;;
        "koala simulate,--jobs") words=(-) ;;
        "koala simulate,--seed") words=(-) ;;
        "koala simulate,--metric") values=(processors processor-seconds seconds); words=(-) ;;
        "koala simulate,--depth") words=(-) ;;
        "koala simulate,--processes") words=(-) ;;
        "koala simulate,--out") files=yes; words=(-) ;;
        "koala experiment run,--seeds") words=(-) ;;
        "koala experiment run,--seed") words=(-) ;;
        "koala experiment run,--set") words=(-) ;;
        "koala experiment run,--processes") words=(-) ;;
        "koala experiment run,--out") files=yes; words=(-) ;;
        "koala app,--install") files=yes; words=(-) ;;
    esac
    if ((${#words[@]} == 0)); then case "$at" in
        "koala") words=(--site --state --verbose --version --help); values=(run submit sweep plan script status top explain logs resize cancel clusters report negotiations demo init check conf docs completion serve schedule wiki metrics reap clean simulate experiment app negotiation schema); ;;
        "koala run") words=(--processors --mpi --walltime --cluster --split --save --json --quiet --help); values=(); files=yes; ;;
        "koala submit") words=(--processors --mpi --walltime --cluster --split --save --json --help); values=(); files=yes; ;;
        "koala sweep") words=(--maximum --together --repeats --grace --walltime --cluster --save --resume --json --quiet --help); values=(); files=yes; ;;
        "koala plan") words=(--json --help); values=(); files=yes; ;;
        "koala script") words=(--cluster --json --help); values=(); files=yes; ;;
        "koala status") words=(--limit --watch --json --help); values=(); ;;
        "koala top") words=(--interval --once --help); values=(); ;;
        "koala explain") words=(--cluster --json --help); values=(); ;;
        "koala logs") words=(--follow --component --rank --stderr --help); values=(); ;;
        "koala resize") words=(--component --json --help); values=(); ;;
        "koala cancel") words=(--no-wait --json --help); values=(); ;;
        "koala clusters") words=(--json --help); values=(); ;;
        "koala report") words=(--since --out --help); values=(); ;;
        "koala negotiations") words=(--job --limit --templates --json --help); values=(); ;;
        "koala demo") words=(--malleable --help); values=(); ;;
        "koala init") words=(--yes --output --replace --help); values=(); ;;
        "koala check") words=(--no-submit --timeout --outside --cluster --json --help); values=(); ;;
        "koala conf") words=(--help); values=(); ;;
        "koala docs") words=(--examples --help); values=(); ;;
        "koala completion") words=(--help); values=(bash zsh fish); ;;
        "koala serve") words=(--stop --reload --end-when-idle --metrics-port --help); values=(); ;;
        "koala schedule") words=(--cluster --give-back --policy --metric --depth --weights --shadow --once --user-holds --no-user-holds --default-walltime --patience --ask-socket --notes --no-notes --metrics-port --json --help); values=(); ;;
        "koala wiki") words=(--help); values=(ask serve); ;;
        "koala wiki ask") words=(--host --port --key-file --dialect --timeout --json --help); values=(); files=yes; ;;
        "koala wiki serve") words=(--cluster --all --key-file --listen --port --peer --peer-user --dialect --cache --retention --reply-within --start-reply-within --oldest --start-within --user-holds --no-user-holds --event-host --metrics-port --event-port --help); values=(); ;;
        "koala metrics") words=(--port --help); values=(); ;;
        "koala reap") words=(--dry-run --all --yes --timeout --json --help); values=(); ;;
        "koala clean") words=(--older --dry-run --json --help); values=(); ;;
        "koala simulate") words=(--policy --platform --processors --jobs --seed --kill-at-limit --dependencies --metric --depth --processes --out --json --help); values=(); files=yes; ;;
        "koala experiment") words=(--help); values=(list run); ;;
        "koala experiment list") words=(--json --help); values=(); ;;
        "koala experiment run") words=(--seeds --seed --set --processes --out --json --help); values=(); ;;
        "koala app") words=(--install --help); values=(); ;;
        "koala negotiation") words=(--help); values=(access check schema); ;;
        "koala negotiation access") words=(--json --help); values=(); ;;
        "koala negotiation check") words=(--json --help); values=(); ;;
        "koala negotiation schema") words=(--extension --help); values=(); ;;
        "koala schema") words=(--help); values=(site job job-report job-list submitted submitted-files explanation local-explanation cluster-list plan scripts checks reaped cleaned queue-event shadow-report given-back negotiation-list negotiation-access negotiation-template simulation-list experiment-list experiment-result wiki-reply); ;;
    esac; fi
    [[ $cur == -* ]] && values=("${words[@]}") && files=no
    mapfile -t COMPREPLY < <(compgen -W "${values[*]}" -- "$cur")
    [[ $files == yes ]] && ((${#COMPREPLY[@]} == 0)) && compopt -o default
    return 0
}
complete -F _koala koala
