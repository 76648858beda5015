"""The checks that need a CUDA device: preflight, its tests, every benchmark, every paper quickly.

    python benchmarks/gpu.py [--only NAME ...]

It begins with benchmarks/preflight.py: what is in the way is said in one line, exit code 2, and
values are compared with the CPU's before anything long begins. Results go to
benchmarks/results/<device>.json. Each part's are written as soon as it is done, so that an
interrupted run, or one of which a later part fails, keeps the others. Of the benchmarks only those
are left out that measure the CPU: floor, models, search, trees.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from preflight import problem

HERE = Path(__file__).resolve().parent
SPECWB = ["-m", "specwb.cli.main"]
CUDA = ["--device", "cuda"]
HALF = [*SPECWB, "compare", *CUDA, "--dtype", "bfloat16"]
SMOL = [*HALF, "--target", "smol", "--prompts", "chat"]
PARTS = {
    "foundation": ["foundation.py", *CUDA],
    "compare": [*SPECWB, "compare", *CUDA],
    "half precision": HALF,
    "half precision, drawn": [*HALF, "--temperature", "1"],
    "smol": SMOL,
    "smol, drawn": [*SMOL, "--temperature", "1"],
    "smol, 16 rows": [*SMOL, "--batch", "16"],
    "tune": [*SPECWB, "tune", *CUDA, "--temperature", "1"],
    "verify": ["verify.py", *CUDA],
    "graphs": ["graphs.py"],
    "attention": ["attention.py"],
    "masks": ["masks.py", *CUDA],
    "easyspec": [*SPECWB, "reproduce", "easyspec", *CUDA, "--seconds", "400"],
    "papers": [*SPECWB, "reproduce", "all", *CUDA, "--rounds", "3", "--seconds", "200"],
}
FOLDERS = {"papers"}  # these write a folder of files


def run(part: str, out: Path) -> int:
    """Runs the tests or a benchmark, which writes its result to ``out``; returns its exit code."""
    if part == "values":
        command = [str(HERE / "preflight.py"), "--smoke"]
    elif part == "tests":
        command = ["-m", "pytest", "-m", "cuda", str(HERE.parent / "tests")]
    else:
        words = [str(HERE / word) if word.endswith(".py") else word for word in PARTS[part]]
        command = [*words, "--json" if "compare" in words else "--out", str(out)]
    return subprocess.run([sys.executable, *command], cwd=HERE.parent, check=False).returncode


def content(out: Path) -> dict:
    """What a part has written; of one that was broken off that may be nothing."""
    if out.is_dir():
        return {file.stem: content(file) for file in sorted(out.glob("*.json"))}
    try:
        found = json.loads(out.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def added(results: dict, part: str, code: int, new: dict) -> dict:
    """The results with a part's; one that failed without a result leaves those that were there."""
    old = results.get(part, {})
    return {**results, part: {**(new or (old if isinstance(old, dict) else {})), "exit_code": code}}


def save(file: Path, results: dict) -> None:
    """Writes the results, so that a file is never half there."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(file)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["values", "tests", *PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    chosen = parser.parse_args().only
    if wrong := problem():
        print(f"make gpu: {wrong}")
        return 2
    device = torch.cuda.get_device_name(0)
    stem = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    file = HERE / "results" / f"{stem}.json"
    results = content(file)
    results |= {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda}
    failed = []
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / ("out" if part in FOLDERS else "out.json")
            if part in FOLDERS:
                out.mkdir()
            code = run(part, out)
            if code:
                failed.append(part)
            results = added(results, part, code, content(out))
        save(file, results)
        if part == "values" and code:
            print("make gpu: values differ from the CPU's: nothing else is measured")
            return 1
    print(f"{file}: " + (f"FAILED: {', '.join(failed)}" if failed else "all parts ran"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
