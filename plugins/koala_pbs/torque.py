# SPDX-License-Identifier: Apache-2.0
"""Torque in the words of OpenPBS: scripts short enough for it, its documents, and their translation.

No part of this does I/O.
"""

from __future__ import annotations

import base64
import gzip
import re
from typing import TYPE_CHECKING

from lxml import etree

from koala_pbs.jobs import Attributes, mapping_of, value_of
from koala_pbs.words import mebibytes_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lxml.etree import _Element


# -- Packed job scripts --------------------------------------------------------------------------------------
# Of a longer script than 64 KiB the server of Torque 6.1 starts what has come with the first 64 KiB. Such a script goes
# packed, and is unpacked into a shell through pipes: it holds a secret, so neither a file nor a command line has it.

LARGEST_SCRIPT = 65_536
"""Bytes that Torque's commands send at once (SCRIPT_CHUNK_Z)."""

_BEGIN, _END = "BEGIN_OF_PACKED_SCRIPT", "END_OF_PACKED_SCRIPT"
_PACKED = f"""\
#!/bin/sh
# koala-adapter: packed, because Torque 6.1 takes no script of more than 64 KiB.
unpack() {{
    sed -n '/^{_BEGIN}$/,/^{_END}$/{{/_/!p;}}' | base64 -d | gzip -dc | /bin/sh
}}
# Bash keeps a here-document in a temporary file, which needs a place: the script is read by its name, or from where
# bash is reading it.
case $0 in
    */*) grep -q '^{_END}$' "$0" 2>/dev/null && {{ unpack <"$0"; exit; }} ;;
esac
case ${{BASH_VERSION:+$-}} in
    *s*) unpack; exit ;;
esac
unpack <<'{_END}'
{_BEGIN}
%s{_END}
"""


def packed(script: str) -> str:
    """Return a shorter script of the same effect, where the script is too long for Torque."""
    raw = script.encode()
    if len(raw) <= LARGEST_SCRIPT:
        return script
    return _PACKED % base64.encodebytes(gzip.compress(raw, mtime=0)).decode("ascii")


# -- Documents -----------------------------------------------------------------------------------------------
# What Torque prints: ``qstat -x`` and ``pbsnodes -x`` as XML, queues and the server as text.
#
# Torque 6.1 escapes values in its XML; older ones need not: an ampersand, or a ``<``, in a user's variable makes it no
# XML then. What cannot be a tag is taken for text. A job that cannot be read even so, or is there twice because a user
# has written it into a variable, is listed in a state that is not known; a listing that is cut short is refused.

LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Characters; 100,000 jobs are about 200 MiB."""

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 does not allow, and that stand in variables."""
_LOOSE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7});)")
_LOOSE_BRACKET = re.compile(r"<(?!/?[A-Za-z_][A-Za-z0-9_.-]*/?>)")
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_NESTED = frozenset({"Resource_List", "resources_used", "req_information"})
"""Attributes of jobs that have parts; a tag in the text of another one is text, too."""
_JOB_BEGINS = re.compile(r"<Job>\s*<Job_Id>(?P<id>[^<]{1,200})</Job_Id>")
_ENTRY = {"Jobs": ("Job", "Job_Id"), "nodes": ("Node", "name")}
_HEADING = re.compile(r"(?P<kind>Server|Queue): (?P<name>\S+)\s*")
_PAIR = re.compile(r" {4}(?P<name>[A-Za-z_][\w.-]*) = (?P<value>.*)")


def read_torque_entries(text: str, section: str) -> dict[str, Attributes]:
    """Return the entries of a section: "Jobs" and "nodes" of XML, "Queue" and "Server" of text; in Torque's words.

    Raises ValueError for what is no such document, and for an entry, which is named, that cannot be read. No text at
    all is a listing without entries: with no job there, qstat says nothing.
    """
    if section not in _ENTRY:
        return _read_text(text, section)
    if not text.strip():
        return {}
    tag, key = _ENTRY[section]
    text = _document(text)
    try:
        return _entries(_elements(text, tag, key), tag, key)
    except ValueError:
        if section != "Jobs" or not text.endswith("</Data>"):
            raise
    return _jobs_singly(text)


def _entries(elements: Iterable[_Element], tag: str, key: str) -> dict[str, Attributes]:
    found: dict[str, Attributes] = {}
    for element in elements:
        attributes = dict(_attributes(element))
        name = attributes.pop(key, "")
        if not isinstance(name, str) or not name:
            raise ValueError(f"there is a {tag} without {key}")
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = attributes
    return found


def _document(text: str) -> str:
    """Parse a document in which texts may look like tags. Raises ValueError."""
    if len(text) > LARGEST_DOCUMENT:
        raise ValueError(f"{len(text)} characters are more than the {LARGEST_DOCUMENT} that are read")
    # Sites' banners stand before it.
    begin = text.find("<Data>")
    if begin < 0:
        raise ValueError("there is no <Data>")
    text = _FORBIDDEN.sub("?", _DECLARATION.sub("", text[begin:]))
    text = _LOOSE_AMPERSAND.sub("&amp;", text).replace("]]>", "]]&gt;")
    return _LOOSE_BRACKET.sub("&lt;", text).strip()


def _elements(text: str, tag: str, key: str) -> list[_Element]:
    try:
        root = _parsed(text)
    except etree.XMLSyntaxError as error:
        raise ValueError(_fault(text, tag, key) or f"it is no XML: {error}") from None
    return [element for element in root if element.tag == tag]


def _jobs_singly(text: str) -> dict[str, Attributes]:
    """Parse each job of a malformed document by itself."""
    found: dict[str, Attributes] = {}
    heads = list(_JOB_BEGINS.finditer(text))
    if not heads:
        raise ValueError("there is no job that can be read")
    for head, following in zip(heads, (*heads[1:], None), strict=True):
        part = text[head.start() : following.start() if following else len(text) - len("</Data>")]
        id_ = head["id"].strip()
        if id_ in found:
            found[id_] = _unreadable(part, "it is there twice: one of the two is what a user has written")
            continue
        try:
            attributes = dict(_attributes(_parsed(part.strip())))
        except etree.XMLSyntaxError as error:
            found[id_] = _unreadable(part, f"its listing is no XML: {error}")
        else:
            attributes.pop("Job_Id", None)
            found[id_] = attributes if attributes.get("Job_Name") else _unreadable(part, "its listing has no name")
    return found


def _unreadable(part: str, reason: str) -> Attributes:
    """Return a stand-in for an unreadable job, with id and perhaps name and owner."""
    known = {name: re.search(rf"<{name}>([^<]*)</{name}>", part) for name in ("Job_Name", "Job_Owner")}
    told = {name: match[1].strip() for name, match in known.items() if match is not None}
    return {"Job_Name": "?", **{name: text for name, text in told.items() if text}, "job_state": "?", "comment": reason}


def _parsed(text: str) -> _Element:
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True
    )
    return etree.fromstring(text.encode("utf-8", "replace"), parser)


def _fault(text: str, tag: str, key: str) -> str:
    """Return the first unreadable entry of a document; empty when there is none."""
    for part in text.split(f"<{tag}>")[1:]:
        whole = f"<{tag}>{part.removesuffix('</Data>')}"
        try:
            _parsed(whole)
        except etree.XMLSyntaxError as error:
            name = re.search(rf"<{key}>([^<]{{1,100}})</{key}>", whole)
            return f"{name[1] if name else tag} cannot be read: {error}"
    return ""


def _attributes(element: _Element) -> Iterator[tuple[str, str | Mapping[str, str]]]:
    for child in element:
        if child.tag in _NESTED:
            yield str(child.tag), {str(inner.tag): (inner.text or "").strip() for inner in child}
        else:
            yield str(child.tag), "".join(map(str, child.itertext())).strip()


# ---- queues and the server ------------------------------------------------------------------------------------------


def _read_text(text: str, section: str) -> dict[str, Attributes]:
    """Return entries that begin with ``Queue: batch``; ``resources_max.walltime`` is an attribute of an attribute."""
    found: dict[str, dict[str, str | dict[str, str]]] = {}
    current: dict[str, str | dict[str, str]] | None = None
    # A long value goes on in a line that begins with a tab.
    for line in text.replace("\n\t", "").splitlines():
        heading, pair = _HEADING.fullmatch(line), _PAIR.fullmatch(line)
        if heading:
            current = found.setdefault(heading["name"], {}) if heading["kind"] == section else None
        elif pair and current is not None:
            outer, _, inner = pair["name"].partition(".")
            nested = current.setdefault(outer, {}) if inner else None
            if isinstance(nested, dict):
                nested[inner] = pair["value"].strip()
            else:
                current[outer] = pair["value"].strip()
    if not found:
        raise ValueError(f"there is no {section}")
    return dict(found)


# -- Translation into the words of OpenPBS -------------------------------------------------------------------
# Torque asks for ``nodes=2:ppn=4`` where OpenPBS has chunks, tells slots (``exec_host = n1/0-3+n2/0``) where that tells
# processors, and has names of its own for times and ends. Its exit statuses below zero are others, too.

_RENAMED = {
    "exit_status": "Exit_status",
    "start_time": "stime",
    "comp_time": "obittime",
    "start_count": "run_count",
    "job_array_id": "array_index",
}
"""Torque's names of attributes, and those of OpenPBS for the same."""

STATUSES = {-10: -27, -11: -29, -12: -28, -13: -3}
"""Torque's exit statuses below zero (pbs_job.h), and those of OpenPBS for the same end: memory, walltime, processor
time, and a start that is tried again. Others have the same numbers there."""

_VARIABLE = re.compile(r"(?:^|,)([A-Za-z_][A-Za-z0-9_]*)=")
_USE = re.compile(r"\s*(?P<slots>[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)/(?P<job>[0-9][^,\s]*)\s*(?:,|$)", re.ASCII)
_PHYSICAL = re.compile(r"(?:^|,)physmem=([0-9]+[kmgt]?b)")
LARGEST_SLOT_RANGE = 100_000


def read_torque(text: str, section: str) -> dict[str, Attributes]:
    """Return what Torque lists as :func:`koala_pbs.jobs.read_entries` returns what OpenPBS does.

    Raises ValueError, as that does.
    """
    entries = read_torque_entries(text, section)
    translate = {"Jobs": _job, "nodes": _node, "Server": _server}.get(section)
    if translate is None:
        return entries
    return {name: translate(attributes) for name, attributes in entries.items()}


def _job(attributes: Attributes) -> Attributes:
    """Parse a job; one with unreadable values has an unknown state."""
    fault = next((f"it has no {name}" for name in ("Job_Name", "job_state") if not value_of(attributes, name)), "")
    if not fault:
        try:
            return _translated(attributes)
        except ValueError as error:
            fault = str(error)
    kept = {name: value_of(attributes, name) for name in ("Job_Name", "Job_Owner", "euser")}
    return {
        **kept,
        "Job_Name": kept["Job_Name"] or "?",
        "job_state": "?",
        "comment": f"its listing cannot be read: {fault}",
    }


def _translated(attributes: Attributes) -> Attributes:
    found = {_RENAMED.get(name, name): value for name, value in attributes.items()}
    status = value_of(found, "Exit_status")
    if status:
        found["Exit_status"] = str(STATUSES.get(number_of(status), number_of(status)))
    wanted = mapping_of(found, "Resource_List")
    # ncpus is of one node only, or 1 beside nodes=1:ppn=4.
    others = {name: value for name, value in wanted.items() if name != "ncpus"}
    found["Resource_List"] = {**others, **_chunks(wanted)}
    found["exec_vnode"] = "+".join(f"({name}:ncpus={count})" for name, count in _layout(value_of(found, "exec_host")))
    variables = _variables(value_of(found, "Variable_List"))
    directory = value_of(found, "init_work_dir")
    found["Variable_List"] = {**({"PBS_O_WORKDIR": directory} if directory else {}), **variables}
    return found


def _chunks(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return select and place for ``nodes=2:ppn=4+n7:ppn=1``, ``procs=8`` or ``ncpus=4``."""
    if wanted.get("procs", "").isdecimal():
        parts, place = [(wanted["procs"], "1", "")], "free"
    else:
        nodes = wanted.get("nodes", "") or f"1:ppn={number_of(wanted.get('ncpus', ''), 1)}"
        parts, place = [_part(part) for part in nodes.partition("#")[0].split("+")], "scatter"
    # Memory is the job's, and pmem that of each process: one of them, as a share of each chunk.
    count = sum(number_of(number, 1) for number, _, _ in parts) or 1
    whole, each = mebibytes_of(wanted.get("mem", "")), mebibytes_of(wanted.get("pmem", ""))
    texts = []
    for number, processors, host in parts:
        share = each * number_of(processors, 1) if each else -(-whole // count) if whole else 0
        texts.append(f"{number}:ncpus={processors}" + (f":mem={share}mb" if share else "") + host)
    return {"select": "+".join(texts), "place": place if count > 1 else "pack"}


def _part(text: str) -> tuple[str, str, str]:
    """Return number, processors and ``:host=`` of one part of a request for nodes; properties are left out."""
    first, *words = text.split(":")
    processors = next((word.removeprefix("ppn=") for word in words if word.startswith("ppn=")), "1")
    if first.isdecimal():
        return first, processors, ""
    return "1", processors, f":host={first}" if re.fullmatch(r"[A-Za-z0-9][\w.-]*", first) else ""


def _layout(exec_host: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and processors of ``n1/0+n1/1`` or ``n1/0-3,5+n2/0``."""
    found: dict[str, int] = {}
    for part in exec_host.split("+"):
        name, _, slots = part.strip().partition("/")
        if name:
            found[name] = found.get(name, 0) + _slots(slots)
    return tuple(found.items())


def _slots(text: str) -> int:
    """Count the slots in ``0-3,5``."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        size = number_of(last or first, -1) - number_of(first, 0) + 1
        if not 0 < size <= LARGEST_SLOT_RANGE:
            raise ValueError(f"{text[:40]!r} are no slots")
        count += size
    return count


def _variables(text: str) -> dict[str, str]:
    """Return the variables of ``A=b,C=d,e``; a comma may stand in a value."""
    found = list(_VARIABLE.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)][: len(found)]
    return {match[1]: text[match.end() : end] for match, end in zip(found, ends, strict=True)}


def _node(attributes: Attributes) -> Attributes:
    jobs = value_of(attributes, "jobs")
    used, position = 0, 0
    while match := _USE.match(jobs, position):
        used, position = used + _slots(match["slots"]), match.end()
    if jobs[position:].strip():
        raise ValueError(f"{jobs[position:][:60]!r} is no job on a node")
    memory = _PHYSICAL.search(value_of(attributes, "status"))
    return {
        "state": value_of(attributes, "state"),
        "comment": value_of(attributes, "note"),
        "resources_available": {
            "ncpus": value_of(attributes, "np") or "0",
            **({"mem": memory[1]} if memory else {}),
            "ngpus": value_of(attributes, "gpus") or "0",
            # OpenPBS has no properties, and says the same by resources that are true or not.
            **dict.fromkeys(filter(None, value_of(attributes, "properties").split(",")), "True"),
        },
        "resources_assigned": {"ncpus": str(used)},
    }


def _server(attributes: Attributes) -> Attributes:
    # Ended jobs stay in the listing for keep_completed seconds, and are not kept anywhere else.
    return {**attributes, "job_history_enable": "False", "max_array_size": "1"}
