"""Does the cost model predict? ``specwb tune`` on every prompt of the set "lab", kept beside the other results.

python benchmarks/cost_model.py [--temperature T] [--device D] [--out FILE] [any other option of specwb tune]
"""

from __future__ import annotations

import sys
from pathlib import Path

from specwb import cli


def main() -> None:
    given = sys.argv[1:]
    device = "cuda" if "cuda" in given else "cpu"
    out = [] if "--out" in given else ["--out", str(Path(__file__).parent / "results" / f"cost-model-{device}.json")]
    warm = [] if "--temperature" in given else ["--temperature", "1"]
    sys.argv = ["specwb", "tune", "--seconds", "0", *warm, *out, *given]
    cli.main()


if __name__ == "__main__":
    main()
