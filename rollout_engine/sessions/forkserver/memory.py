"""A process that is copied often, laid out so that a copy costs little: its memory in large pages.

Invariant: only where memory lies changes, never what is in it, nor how much of it there is but for the last tenth of a
large page. Where the system has no large pages, nothing changes.

A process that is itself a fork is laid out again when it has come to rest: what it wrote is in small pages since.

A fork copies an entry for each page, and the copy's end gives back as many: 19,000 for a server of 75 MB, of which a
session writes to 4,000. A large page is one entry, and whoever writes to it still takes only the 4 KiB it wrote.
"""

import array
import ctypes
import os
import resource

LARGE = 2 << 20
PAGE = resource.getpagesize()
MADV_COLLAPSE = 25
"""Linux 6.1; earlier ones answer that they don't know it."""
FILLED = 0.9
"""Of a large page's worth of memory: what is emptier would take more than it has."""
PRESENT = 1 << 63


def consolidate():
    """Put the memory that is this process's own, and writable, into large pages."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    try:
        pages = os.open("/proc/self/pagemap", os.O_RDONLY)
    except OSError:
        return
    try:
        for start in filled(pages):
            madvise(start, LARGE, MADV_COLLAPSE)
    finally:
        os.close(pages)


def filled(pages):
    """Where each large page would start that is filled well enough; ``pages`` is a descriptor of the page map."""
    for start, end in writable():
        for large in range(start + -start % LARGE, end - LARGE + 1, LARGE):
            entries = array.array("Q", os.pread(pages, LARGE // PAGE * 8, large // PAGE * 8))
            if sum(entry >= PRESENT for entry in entries) >= FILLED * LARGE / PAGE:
                yield large


def writable():
    """Start and end of each stretch of memory that is no file's and only this process's."""
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        bounds, rights, _, _, _, *name = line.split(None, 5)
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = bounds.split("-")
            yield int(start, 16), int(end, 16)
