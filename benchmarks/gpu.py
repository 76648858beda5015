"""The checks that need a CUDA device: its tests, then every benchmark.

    python benchmarks/gpu.py [--only NAME ...]

Results go to benchmarks/results/<device>.json. Each part's are written as soon as it is done, so an
interrupted run keeps the others. Without a device it prints one line.
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

HERE = Path(__file__).resolve().parent
SPECWB = ["-m", "specwb.cli"]
CUDA = ["--device", "cuda"]
PARTS = {
    "foundation": ["foundation.py", *CUDA],
    "everyday": ["everyday.py", *CUDA],
    "precision": ["precision.py", *CUDA, "--dtype", "float32 bfloat16 float16"],
    "tune": [*SPECWB, "tune", *CUDA, "--temperature", "1"],
    "verify": ["verify.py", *CUDA],
    "heads": ["heads.py", *CUDA],
    "graphs": ["graphs.py"],
    "easyspec": [*SPECWB, "reproduce", "easyspec", *CUDA, "--seconds", "400"],
}


def run(part: str, out: Path) -> int:
    """Runs the tests or a benchmark, which writes its result to ``out``; returns its exit code."""
    if part == "tests":
        command = ["-m", "pytest", "-m", "cuda", str(HERE.parent / "tests")]
    else:
        words = [str(HERE / word) if word.endswith(".py") else word for word in PARTS[part]]
        command = [*words, "--out", str(out)]
    return subprocess.run([sys.executable, *command], cwd=HERE.parent, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["tests", *PARTS]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    chosen = parser.parse_args().only
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to run")
        return 0
    device = torch.cuda.get_device_name()
    stem = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    file = HERE / "results" / f"{stem}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda}
    failed = []
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            code = run(part, out)
            if code:
                failed.append(part)
            content = json.loads(out.read_text()) if out.exists() else {}
            results[part] = {"exit_code": code, **content}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{file}: " + (f"FAILED: {', '.join(failed)}" if failed else "all parts ran"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
