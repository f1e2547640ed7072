"""Large pages for a process that is copied: more of them, the same contents, no more memory where there is little."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_engine.sessions.forkserver import memory

SIZE = 8 * memory.LARGE
LOOK = """
import mmap, re, sys
sys.path.insert(0, {package!r})
from forkserver import memory

def used(field):
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(field + r":\\s+(\\d+) kB", file.read())[1])

block = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, {size}, {step}):
    block[page : page + 8] = page.to_bytes(8, "little")
before = used("AnonHugePages"), used("Rss")
memory.consolidate()
assert all(block[page : page + 8] == page.to_bytes(8, "little") for page in range(0, {size}, {step}))
print(used("AnonHugePages") - before[0], used("Rss") - before[1])
"""


def look(step: int) -> tuple[int, int]:
    """KiB in large pages and in all that :func:`memory.consolidate` brought, with a byte written every ``step``."""
    package = os.fspath(Path(memory.__file__).parents[1])
    code = LOOK.format(package=package, size=SIZE, step=step)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    large, all_ = map(int, ran.stdout.split())
    return large, all_


def collapses() -> bool:
    """Whether this system has large pages for one who asks."""
    block = mmap.mmap(-1, 2 * memory.LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(bytes(2 * memory.LARGE))
    try:
        block.madvise(memory.MADV_COLLAPSE)
    except OSError:
        return False
    return True


@pytest.mark.skipif(not collapses(), reason="this system has no large pages to be had by asking")
def test_full_memory_goes_into_large_pages_and_keeps_what_it_holds():
    large, more = look(memory.PAGE)
    assert large >= (SIZE - memory.LARGE) // 1024  # but for its ragged ends
    assert more <= memory.LARGE // 1024


def test_memory_that_is_mostly_empty_takes_no_more_than_it_did():
    large, more = look(4 * memory.PAGE)
    assert large <= memory.LARGE // 1024  # the interpreter's own, at most
    assert more <= memory.LARGE // 1024


def test_memory_of_files_and_memory_that_others_see_is_left_alone(tmp_path):
    with open(tmp_path / "file", "wb+") as file:
        file.write(bytes(SIZE))
        file.flush()
        of_file = mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
    shared, own = mmap.mmap(-1, SIZE), mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    stretches = list(memory.writable())

    def touched(block: mmap.mmap) -> bool:
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        return any(start <= address < end for start, end in stretches)

    assert [touched(block) for block in (of_file, shared, own)] == [False, False, True]
