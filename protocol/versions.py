"""A policy version on disk: the name of its folder, and the record in it.

Invariant: a version's folder lies beside those of the run's other versions, under a name that its number gives, and
holds its own announcement. So whoever is told of a delta finds what it goes onto without having heard of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from protocol.records import PolicyVersion, decode, encode

RECORD = "version.json"


def folder_name(version: int) -> str:
    return f"v{version:06d}"


def write_record(folder: Path, version: PolicyVersion) -> None:
    (folder / RECORD).write_bytes(encode(version))


def read_record(folder: Path) -> PolicyVersion | None:
    """The version whose folder this is, with ``folder`` where it lies now; None where there is no whole one."""
    try:
        record = decode((folder / RECORD).read_bytes(), PolicyVersion)
    except (OSError, msgspec.DecodeError):
        return None
    return msgspec.structs.replace(record, folder=str(folder))
