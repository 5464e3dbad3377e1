# SPDX-License-Identifier: Apache-2.0
"""Completions for bash, zsh and fish as plain scripts: completing a word starts no Python."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from docs.commandtree import Command

MADE = "# SPDX-License-Identifier: Apache-2.0\n# Made by docs/reference.py from the commands; do not edit."


def completions(tree: Sequence[Command]) -> dict[str, str]:
    """Return the script for each shell, by the name of its file."""
    makers: dict[str, Callable[[Sequence[Command]], Iterator[str]]] = {
        "koala.bash": _bash,
        "_koala": _zsh,
        "koala.fish": _fish,
    }
    return {name: "\n".join(make(tree)) + "\n" for name, make in makers.items()}


def _bash(tree: Sequence[Command]) -> Iterator[str]:
    yield MADE
    yield "_koala() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    local at=koala word i words=() values=() files=no"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield "        word=${COMP_WORDS[i]}"
    yield "        [[ $word == -- ]] && { compopt -o default; COMPREPLY=(); return; }"
    yield '        case "$at $word" in'
    yield f'            {_alternatives(tree)}) at="$at $word" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$at,$prev" in'
    for command in tree:
        for option in command.options:
            if option.metavar:
                given = (
                    f"values=({_words(option.choices)})" if option.choices else ("files=yes" if option.files else "")
                )
                pattern = " | ".join(f'"{command.name},{name}"' for name in option.names)
                then = f"{given}; " if given else ""
                yield f"        {pattern}) {then}words=(-) ;;"
    yield "    esac"
    yield '    if ((${#words[@]} == 0)); then case "$at" in'
    for command in tree:
        names = [name for option in command.options for name in option.names if name.startswith("--")]
        plain = [*(member for member, _ in command.commands), *command.choices]
        files = " files=yes;" if command.files else ""
        yield f'        "{command.name}") words=({_words([*names])}); values=({_words(plain)});{files} ;;'
    yield "    esac; fi"
    yield '    [[ $cur == -* ]] && values=("${words[@]}") && files=no'
    yield '    mapfile -t COMPREPLY < <(compgen -W "${values[*]}" -- "$cur")'
    yield "    [[ $files == yes ]] && ((${#COMPREPLY[@]} == 0)) && compopt -o default"
    yield "    return 0"
    yield "}"
    yield "complete -F _koala koala"


def _zsh(tree: Sequence[Command]) -> Iterator[str]:
    yield "#compdef koala"
    yield MADE
    yield "_koala() {"
    yield "    local at=koala word prev=${words[CURRENT-1]}"
    yield "    local -a options values; local files=no i"
    yield "    for ((i = 2; i < CURRENT; i++)); do"
    yield "        word=${words[i]}"
    yield "        [[ $word == -- ]] && { _files; return; }"
    yield '        case "$at $word" in'
    yield f'            ({_alternatives(tree)}) at="$at $word" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$at,$prev" in'
    for command in tree:
        for option in command.options:
            if option.metavar:
                pattern = "|".join(f'"{command.name},{name}"' for name in option.names)
                do = (
                    "_files"
                    if option.files
                    else f"compadd -- {_words(option.choices)}"
                    if option.choices
                    else "_message value"
                )
                yield f"        ({pattern}) {do}; return ;;"
    yield "    esac"
    yield '    case "$at" in'
    for command in tree:
        described = " ".join(
            shlex.quote(f"{name}:{_short(option.help)}")
            for option in command.options
            for name in option.names
            if name.startswith("--")
        )
        plain = " ".join(
            shlex.quote(f"{member}:{_short(sentence)}")
            for member, sentence in (*command.commands, *((choice, choice) for choice in command.choices))
        )
        files = "; files=yes" if command.files else ""
        yield f'        ("{command.name}") options=({described}); values=({plain}){files} ;;'
    yield "    esac"
    yield "    if [[ ${words[CURRENT]} == -* ]]; then _describe -o option options; return; fi"
    yield "    (( ${#values} )) && _describe value values"
    yield "    [[ $files == yes ]] && _files"
    yield "    return 0"
    yield "}"
    yield 'if [[ $funcstack[1] == _koala ]]; then _koala "$@"; else compdef _koala koala; fi'


def _fish(tree: Sequence[Command]) -> Iterator[str]:
    yield MADE
    yield "function __koala_at"
    yield "    set -l at koala"
    yield "    for word in (commandline -opc)[2..]"
    yield '        switch "$at $word"'
    yield f"            case {' '.join(_fish_text(command.name) for command in tree[1:])}"
    yield '                set at "$at $word"'
    yield "        end"
    yield "    end"
    yield '    test "$at" = "$argv"'
    yield "end"
    for command in tree:
        condition = _fish_text(f"__koala_at {command.name}")
        if not command.files:
            yield f"complete -c koala -n {condition} -f"
        for member, sentence in (*command.commands, *((choice, "") for choice in command.choices)):
            yield f"complete -c koala -n {condition} -a {_fish_text(member)} -d {_fish_text(_short(sentence))}"
        for option in command.options:
            spelt = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = (" -r" if option.files else " -x") if option.metavar else ""
            choices = f" -a {_fish_text(' '.join(option.choices))}" if option.choices else ""
            yield f"complete -c koala -n {condition} {spelt}{value}{choices} -d {_fish_text(_short(option.help))}"


def _alternatives(tree: Sequence[Command]) -> str:
    return "|".join(f'"{command.name}"' for command in tree[1:])


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _short(text: str) -> str:
    """Return the first sentence of a help text, without what the shells would read into it."""
    first = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return first.replace(":", " -").replace("[", "(").replace("]", ")")


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
