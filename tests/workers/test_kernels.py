"""Loading kernels: cached machine code loads without the compiler; without a cache they are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

KERNEL = """
import sys
import numpy as np
from pilekit.workers.kernels import compiled

@compiled()
def total(values):
    sums = np.zeros(len(values) + 1, np.int64)
    for i in range(len(values)):
        sums[i + 1] = sums[i] + values[i]
    return sums[-1]

@compiled("int64(int64[::1])")
def total_of_known_type(values):
    total = 0
    for value in values:
        total += value
    return total

print(total(np.arange(5)), total_of_known_type(np.arange(5)), "scipy.linalg" in sys.modules)
"""


def run(*arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_cached_machine_code_loads_without_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KERNEL)
    # The compiler imports SciPy if it is installed. The first run compiles, the second only loads.
    assert run(str(script)).split()[:2] == ["10", "10"]
    assert run(str(script)).split() == ["10", "10", "False"]
