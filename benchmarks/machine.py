"""Description of the machine of a measurement; a figure without it has no meaning."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

_LOAD_BEFORE = psutil.getloadavg()
"""When the benchmark was started: each is a process of its own and imports this first."""


def machine() -> dict[str, object]:
    """Return processor, usable cores, memory, system and Python, and the load averages over 1, 5 and 15 minutes at the start of the
    benchmark and now (with the benchmark's own work).
    """
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_before": _load(_LOAD_BEFORE),
        "load_average_after": _load(psutil.getloadavg()),
    }


def _load(averages: tuple[float, float, float]) -> str:
    return " ".join(f"{average:.1f}" for average in averages)


def _processor() -> str:
    """Return the name of the processor's model, which only Linux has in a file."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
