"""The checks that need a CUDA device: its tests, then every benchmark, into benchmarks/results/<device>.json. Without a device: one line.

python benchmarks/gpu.py [--only NAME ...]; each part's results are written as soon as it is done, so an interrupted run keeps the others.
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
PARTS = {
    "foundation": ["foundation.py", "--device", "cuda"],
    "everyday": ["everyday.py", "--device", "cuda"],
    "precision": ["precision.py", "--device", "cuda", "--dtype", "float32 bfloat16 float16"],
    "tune": ["-m", "specwb.cli", "tune", "--device", "cuda", "--temperature", "1"],
    "verify": ["verify.py", "--device", "cuda"],
    "heads": ["heads.py", "--device", "cuda"],
    "graphs": ["graphs.py"],
    "easyspec": ["-m", "specwb.cli", "reproduce", "easyspec", "--device", "cuda", "--seconds", "400"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=["tests", *PARTS], default=["tests", *PARTS])
    chosen = parser.parse_args().only
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to run")
        return 0
    name = torch.cuda.get_device_name()
    file = HERE / "results" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    failed = []
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            if part == "tests":
                command = [sys.executable, "-m", "pytest", "-m", "cuda", str(HERE.parent / "tests")]
            else:
                words = [str(HERE / word) if word.endswith(".py") else word for word in PARTS[part]]
                command = [sys.executable, *words, "--out", str(out)]
            code = subprocess.run(command, cwd=HERE.parent, check=False).returncode
            if code:
                failed.append(part)
            results[part] = {"exit_code": code, **(json.loads(out.read_text()) if out.exists() else {})}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{file}: " + (f"FAILED: {', '.join(failed)}" if failed else "all parts ran"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
