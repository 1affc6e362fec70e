"""The machine a result was measured on."""

import os
import platform
from pathlib import Path


def machine():
    """Processor, number of processors that may be used, operating system, load of the last minute."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "processor": model,
        "processors": len(os.sched_getaffinity(0)),
        "system": platform.platform(terse=True),
        "load": round(os.getloadavg()[0], 1),
    }
