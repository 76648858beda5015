"""``make dry``: every method's CUDA code, run without a GPU.

    python tests/dry/run.py [--install]

torch's own CUDA code runs on a runtime whose kernels do nothing (``runtime.c``). What is proven:
that steps can be recorded, how many graphs, collectives and host reads a step takes, and that no
tensor lies on the wrong device. Not proven: values, races, time.

Exit codes: 0; 1 something failed; 3 torch's CUDA build or the compiler is missing, and why.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import runtime

PARTS = ("calibrate", "fp32", "bf16", "ranks")
SECONDS = 900  # the time limit of a part


def run(part: str, environment: dict[str, str]) -> list[dict]:
    """The documents that a part reports."""
    python = [str(runtime.VENV / "bin" / "python"), str(runtime.HERE / "inside.py")]
    environment = {**os.environ, **environment}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as port:
        commands = [([*python, part], environment)]
        if part == "ranks":
            model = f"import tiny; tiny.target().model.save_pretrained({folder!r}); "
            model += f"tiny.tokenizer(['a', 'b']).save_pretrained({folder!r})"
            command = [python[0], "-c", model]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            port.bind(("127.0.0.1", 0))
            shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
            shared["MASTER_PORT"] = str(port.getsockname()[1])
            port.close()
            commands = [
                ([*python, "rank", folder], {**environment, **shared, "RANK": str(number)})
                for number in range(2)
            ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = [subprocess.Popen(words, env=env, **pipes) for words, env in commands]
        rows = []
        for process in started:
            out, errors = process.communicate(timeout=SECONDS)
            rows += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            if process.returncode:
                last = (errors.strip().splitlines() or ["no message"])[-1]
                rows.append({"case": part, "error": f"exit code {process.returncode}: {last}"})
    return rows or [{"case": part, "error": "nothing was run"}]


def faults(row: dict) -> list[str]:
    """What a case does that it must not."""
    if "error" in row:
        return [row["error"]]
    if "replays" not in row:
        return []
    reads = 1 + row["host_reads"]
    # each read ends a stage; the draft is put together in one, one follows it, and the noise of
    # exact_text is one
    stages = reads + 2 + row.get("exact_text", False)
    graphs = 0 if row["mode"] == "eager" else stages if row["staged"] else 1
    # where no step can be recorded, what the host finds has a size of its own
    pageable = 0 if row["captured"] else row["pageable"]
    limits = {"violations": 0, "replays": graphs, "reads": reads, "pageable": pageable}
    limits["syncs"] = reads + pageable
    over = [f"{row[name]} {name}, at most {most}" for name, most in limits.items()]
    found = [text for text, name in zip(over, limits, strict=True) if row[name] > limits[name]]
    if row["mode"] == "graph" and not row["replays"]:
        found.append("no graph is replayed")
    return found


def main() -> int:
    try:
        if "--install" in sys.argv[1:]:
            runtime.install()
        environment = runtime.build()
    except runtime.Missing as error:
        print(f"dry run: {error}")
        return 3
    failed, began = 0, time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for part, rows in zip(PARTS, pool.map(lambda part: run(part, environment), PARTS)):
            wrong = [f"{r['case']} {r.get('mode', '')}: {f}" for r in rows for f in faults(r)]
            failed += len(wrong)
            print(f"{part}: {len(rows)} cases, {len(wrong)} faults", *wrong, sep="\n  ")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
