"""What figures were measured on. Figures without it say nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """CPU, cores, the load of the last minute (what else ran), and torch's version, as JSON."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "torch": torch.__version__}


def versions() -> dict[str, str]:
    """Python, numpy and torch."""
    import numpy as np

    return {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
