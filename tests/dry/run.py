"""``make dry``: every method's CUDA code, run without a GPU.

    python tests/dry/run.py [--install] [--save] [--only PART ...] [--limit SECONDS] [--jobs N]

torch's own CUDA code runs on a runtime whose kernels do nothing (``runtime.c``). What is proven:
that steps can be recorded, how many graphs, copies and host reads a step takes, that no
tensor lies on the wrong device, what memory is reserved, and which attention torch chooses. Not
proven: values, races, time.

``--save`` writes what was counted to ``tests/dry/counted.json``, and the tables of docs/gpu.md.
Exit codes: 0; 1 something failed; 3 torch's CUDA build or the compiler is missing, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import runtime
import tables

PARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "calibrate": (["calibrate"], {}),
    "steps fp32": (["steps", "fp32"], {}),
    "steps bf16": (["steps", "bf16"], {}),
    "large bf16": (["large", "bf16"], {}),
    "ranks": ([], {}),
    "memory": (["memory"], {"DRY_MEMORY": "96"}),
    "dropped": (["dropped"], {}),
    "attention sm_80": (["attention"], {"DRY_SM": "80"}),
    "attention sm_90": (["attention"], {"DRY_SM": "90"}),
}


def run(part: str, environment: dict[str, str], limit: float) -> list[dict]:
    """What a part says, a document a line."""
    words, own = PARTS[part]
    script = "inside.py" if words else "several.py"
    command = [str(runtime.VENV / "bin" / "python"), str(runtime.HERE / script), *words]
    env = {**os.environ, **environment, **own}
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=runtime.ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [{"error": f"not done after {limit:.0f} s"}]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        rows.append({"error": f"exit code {done.returncode}: {last}"})
    return rows


def faults(rows: list[dict]) -> list[str]:
    """What is wrong with what a part has counted."""
    wrong = []
    for row in rows:
        name = tables.name_of(row)
        if "operation" in row:
            if row["accepted"] != row["wanted"]:
                wrong.append(f"{name}: accepted is {row['accepted']}, not {row['wanted']}")
        elif "error" in row:
            wrong.append(f"{name}: {row['error']} {row.get('at', '')} {row.get('complaint', '')}")
        elif "mode" in row and "nodes" in row:
            wrong += [f"{name}: {text}" for text in step_faults(row)]
    return wrong


def step_faults(row: dict) -> list[str]:
    """What a step does that it must not."""
    reads = 1 + row["host_reads"]
    # each read ends a stage; the draft is put together in one, and one follows it
    graphs = 0 if row["mode"] == "eager" else 1 if not row["staged"] else reads + 2
    # where no step can be recorded, what the host finds has a size of its own
    pageable = 0 if row["captured"] else row["pageable"]
    limits = {"violations": 0, "replays": graphs, "reads": reads, "syncs": reads + pageable}
    found = []
    for name, most in limits.items():
        if row[name] > most:
            found.append(f"{row[name]} {name}, at most {most}")
    if row["pageable"] > pageable:
        found.append(f"{row['pageable']} copies from pageable memory")
    if row["mode"] == "graph" and not row["replays"]:
        found.append("no graph is replayed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--limit", type=float, default=1200.0)
    parser.add_argument("--jobs", type=int, default=2, help="parts that run at once")
    chosen = parser.parse_args()
    try:
        if chosen.install:
            runtime.install()
        environment = runtime.build()
    except runtime.Missing as error:
        print(f"dry run: {error}")
        return 3
    kept = tables.read()
    failed = 0

    def timed(part: str) -> tuple[list[dict], float]:
        began = time.monotonic()
        return run(part, environment, chosen.limit), time.monotonic() - began

    with ThreadPoolExecutor(min(chosen.jobs, len(chosen.only))) as pool:
        done = zip(chosen.only, pool.map(timed, chosen.only), strict=True)
        for part, (rows, seconds) in done:
            wrong = faults(rows)
            failed += len(wrong)
            said = "; ".join(wrong[:1]) if wrong else "ok"
            print(f"{part}: {len(rows)} cases, {seconds:.0f} s: {said}", flush=True)
            for text in wrong[1:]:
                print(f"  {text}")
            if chosen.save:
                kept[part] = tables.kept(part, rows)
                tables.write(kept)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
