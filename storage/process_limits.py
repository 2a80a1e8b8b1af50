"""How many indexes a process may have open: its limits on file descriptors and address space."""

from __future__ import annotations

import resource
from typing import Final

MOST_OPEN: Final = 250
"""At most this many indexes are open at a time, whatever the limits of the process are. LMDB allocates 3 MiB for each
file that is open for writing."""
LEAST_OPEN: Final = 4
FILES_PER_INDEX: Final = 6
"""File descriptors of an open index: data, data of the writer, locks, directory, and some that are open briefly."""
OTHER_FILES: Final = 128
"""File descriptors that are left to the rest of the process, such as connections."""

LARGE_MAP: Final = 1 << 40
"""The size of the map of a file: address space, not memory or disk. A file cannot grow beyond its map while it is open,
and a map cannot be changed while it is in use."""
LARGE_MAPS: Final = 64
"""While fewer files than this are mapped, each file gets a large map. After that, small files get smaller maps, because
a process has 128 TiB of address space: 64 maps of 1 TiB and 190 maps of 256 GiB fit into that."""
SMALL_FILE: Final = 16 << 30
"""Larger files get large maps in any case."""
SMALL_MAP: Final = 256 << 30
LEAST_MAP: Final = 32 << 30
"""The map of a file if the address space is not sufficient for a larger one."""


def max_open_indexes() -> int:
    """Return how many indexes of a database may be open, by the process's limit on file descriptors."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(LEAST_OPEN, min(MOST_OPEN, (files - OTHER_FILES) // FILES_PER_INDEX))


def files_text() -> str:
    """Return what to say if the process has too many files open."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the process may have {files} files open (RLIMIT_NOFILE); raise this limit (ulimit -n), at most to "
        f"{'unlimited' if most == resource.RLIM_INFINITY else most}, or use fewer indexes and connections at once"
    )


def memory_text() -> str:
    """Return what to say if a file cannot be mapped."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return "the address space or the memory of the process is used up; use fewer indexes at once"
    return (
        f"the process may use {limit} bytes of address space (RLIMIT_AS), and the map of an index takes "
        f"{LEAST_MAP} or more; remove this limit (ulimit -v unlimited), and limit the memory in another way"
    )
