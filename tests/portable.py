"""The numeric tests under several kinds of arithmetic of one machine: what the rounding of another
processor would change shows here. A run of pytest and a line for each; exit code 1 if one fails.

    python tests/portable.py [--only TEXT] [PATHS]

torch, oneDNN and MKL choose their kernels by the processor's instructions; the variables below let
them see fewer. Heads of the tiny models are trained anew under every setting (tests/tiny.py).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
# what compares numbers, texts or decisions of two computations; fractions, frequencies, files,
# commands and pictures are left out, and replayed graphs, which are compared bit for bit
FILES = ("protocol", "ar_oracle", "backbone", "invalid_distribution", "explain", "probability")
NUMERIC = [
    *(f"tests/test_{name}.py" for name in FILES),
    "tests/rules/test_kernels.py",
    "tests/drafters",
    "tests/models",
]
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}


def settings() -> dict[str, dict[str, str]]:
    """Environment variables by name: at least four that every processor has."""
    one = {"SPECWB_TEST_THREADS": "1", "OMP_NUM_THREADS": "1"}
    # threads that spin while they wait take the processor from each other
    two = {"SPECWB_TEST_THREADS": "2", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    found = {
        "own instructions, 1 thread": one,
        "own instructions, 2 threads": two,
        "no vector instructions, 1 thread": {**one, **PLAIN},
        "no vector instructions, 2 threads": {**two, **PLAIN},
    }
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        found["AVX2, 1 thread"] = {**one, **AVX2}
    return found


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--only", default="", metavar="TEXT", help="settings whose name has it")
    parser.add_argument("paths", nargs="*", default=NUMERIC, help="what pytest runs")
    asked = parser.parse_args()
    lines, failed = [], False
    for name, variables in settings().items():
        if asked.only not in name:
            continue
        began = time.monotonic()
        processes = (
            "1" if variables["SPECWB_TEST_THREADS"] == "2" else "2"
        )  # as many threads in all
        options = ["-m", "not slow", "-n", processes, "--dist", "loadscope"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *asked.paths],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        failed |= done.returncode != 0
        if done.returncode:
            print(done.stdout)
        counts = re.findall(r"\d+ (?:passed|failed|error).* in [^=\n]*", done.stdout)
        word = "FAILED" if done.returncode else "passed"
        lines.append(
            f"{word}  {name}: {counts[-1].strip() if counts else f'exit code {done.returncode}'}"
        )
        print(lines[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
    print("", *lines, sep="\n")
    return int(failed or not lines)


if __name__ == "__main__":
    sys.exit(main())
