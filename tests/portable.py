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
# what compares numbers, texts or decisions; training, files, commands and pictures are left out
NUMERIC = [
    *(f"tests/{name}.py" for name in (
        "test_protocol", "test_graphs", "test_hf", "test_ar_oracle", "test_backbone", "test_broken_law",
        "test_decoding_law", "test_explain", "test_probability",
    )),
    "tests/drafters", "tests/models", "tests/verify",
]  # fmt: skip
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}


def settings() -> dict[str, dict[str, str]]:
    """Environment variables by name: at least four that every processor has."""
    one, two = ({"SPECWB_TEST_THREADS": n, "OMP_NUM_THREADS": n} for n in ("1", "2"))
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="settings whose name has it")
    parser.add_argument("paths", nargs="*", default=NUMERIC, metavar="PATHS", help="what pytest runs")
    asked = parser.parse_args()
    lines, failed = [], False
    for name, variables in settings().items():
        if asked.only not in name:
            continue
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-m", "not slow", "-n", "2", "--dist", "loadscope", *asked.paths]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        failed |= done.returncode != 0
        if done.returncode:
            print(done.stdout)
        counts = re.findall(r"\d+ (?:passed|failed|error).* in [^=\n]*", done.stdout)
        word = "FAILED" if done.returncode else "passed"
        lines.append(f"{word}  {name}: {counts[-1].strip() if counts else f'exit code {done.returncode}'}")
        print(lines[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
    print("", *lines, sep="\n")
    return int(failed or not lines)


if __name__ == "__main__":
    sys.exit(main())
