"""What the numbers were measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path


def describe(*packages: str) -> str:
    """One line: processor, cores, memory, system, and versions of `packages`."""
    parts = [
        _processor(),
        f"{_num_cores()} cores",
        _memory(),
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        *(f"{name} {importlib.metadata.version(name)}" for name in packages),
    ]
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # only Linux has it
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _num_cores() -> int | None:
    """The cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory() -> str:
    try:
        num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows; a system without that name
        return "memory unknown"
    return f"{num_bytes / 2**30:.0f} GiB"
