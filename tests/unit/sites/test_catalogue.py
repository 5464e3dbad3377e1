# SPDX-License-Identifier: Apache-2.0
"""Catalogues: which files the nodes of a cluster have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.sites.catalogue import LONGEST_CATALOGUE, CatalogueError, listed, read_catalogue

TEXT = b"""\
# genomes of the group
/data/a.fa
/data/sets/
hg38.fa\t/data/genome/hg38.fa
reads/one.fq   /scratch/with a blank/one.fq

images/ /data/images/
"""


def test_paths_names_and_directories() -> None:
    found = read_catalogue(TEXT)
    assert [found.has(path) for path in ("/data/a.fa", "/data/sets", "/data/sets/x/y", "/data/genome/hg38.fa")] == [
        True
    ] * 4
    assert [found.has(path) for path in ("/data", "/data/a", "/data/a.fa/x", "/data/setsx", "hg38.fa", "")] == [
        False
    ] * 6
    names = ("hg38.fa", "reads/one.fq", "images/1/2.png", "images/", "reads/two.fq", "images")
    assert [found.place_of(name) for name in names] == [
        "/data/genome/hg38.fa",
        "/scratch/with a blank/one.fq",
        "/data/images/1/2.png",
        "/data/images/",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"/a\nrelative/path\n", r"line 2: allowed is an absolute path, or a name and an absolute path"),
        (b"name other\n", "line 1: allowed is an absolute path"),
        (b"/a/../b\n", "line 1: allowed"),
        (b"/a\x00b\n", "line 1: allowed"),
        (b"/" + b"x" * 5000, "line 1: allowed"),
        (b"\n\xff\xfe\n", "line 2 is not UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "line 1: allowed"),
        (b"name/ /a\n", "a directory ends in a slash"),
        (b"name /a/\n", "a directory ends in a slash"),
        (b"name /a\nname /b\n", "line 2: the name name stands for /a already"),
        (b"/a\n" * (LONGEST_CATALOGUE // 3 + 1), "longer than 4 MiB"),
    ],
)
def test_what_is_no_catalogue(content: bytes, fault: str) -> None:
    with pytest.raises(CatalogueError, match=fault):
        read_catalogue(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_catalogue_or_refused(content: bytes) -> None:
    """Nothing else happens, and all places are absolute paths that one line can show."""
    try:
        found = read_catalogue(content)
    except CatalogueError:
        return
    assert all(path.startswith("/") and path.isprintable() for path in (*found.paths, *found.names.values()))


def test_names_in_a_directory() -> None:
    found = listed(b"a.fa\0with blank\0two\nlines\0\xff\0", "/data/sets/")
    assert found.names == {"a.fa": "/data/sets/a.fa", "with blank": "/data/sets/with blank"}
    assert found.has("/data/sets/a.fa")
    with pytest.raises(CatalogueError, match="too many files"):
        listed(b"x\0" * LONGEST_CATALOGUE, "/data")
