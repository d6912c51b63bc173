"""What the numbers were measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path


def describe(*packages: str) -> str:
    """One line: processor, cores, memory, system, and versions of `packages`."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        names[0] if names else platform.processor(),
        f"{len(os.sched_getaffinity(0))} cores",
        f"{memory:.0f} GiB",
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        *(f"{name} {importlib.metadata.version(name)}" for name in packages),
    ]
    return ", ".join(parts)
