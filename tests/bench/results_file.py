"""Where a bench leaves its figures."""

import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_results(name: str, figures: dict[str, Any]) -> None:
    """To results/<name>.json, with what it was measured on."""
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **figures}, indent=1) + "\n")
    print(f"figures: {path}")
