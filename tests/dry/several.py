"""What runs on the dry device in two processes: ``several.py``, one JSON document a line.

They are given the environment that torchrun makes on two machines of one device each.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import device
import ranked
import tiny
import torch
from inside import PROMPTS, measured, say, where
from shapes import moved

import specwb
from specwb.models import ranks


def main() -> None:
    """Starts both processes for each task and says what they say."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.target().model.save_pretrained(folder)
        tiny.tokenizer(["a", "b"]).save_pretrained(folder)
        for task in ("steps", "silence", "ending"):
            shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
            shared["MASTER_PORT"] = str(ranked.free_port())
            started = [
                subprocess.Popen(
                    [sys.executable, __file__, task, folder],
                    env={**os.environ, **shared, "RANK": str(number)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for number in range(2)
            ]
            for number, process in enumerate(started):
                print(process.communicate()[0], end="", flush=True)
                if process.returncode:
                    say(case=f"{task}, rank {number}", error=f"exit code {process.returncode}")


def steps(folder: Path) -> None:
    """Decodings whose attentions are on both ranks, with the target whole and parted over them."""
    here = ranks.join("cuda", timeout=60.0)
    draft = moved(ranked.deep(), torch.float32)
    methods = []  # whose graphs are there when the group is left
    targets = {"whole": moved(tiny.target(), torch.float32)}
    targets["parted"] = specwb.load(folder, ranks=here)
    for kind, target in targets.items():
        for name, (options, settings) in ranked.CASES.items():
            temperature, counted = settings.get("temperature", 0.0), {}
            about = {"case": f"{name}, {kind} target, rank {here.rank}", "T": temperature}
            about |= {"host_reads": 0, "captured": True, "staged": False}
            for mode, graphs in (("graph", True), ("eager", False)):
                try:
                    method = specwb.method(
                        "easyspec", target, draft=draft, execution="ranks", **options
                    )
                    counted[mode] = measured(method, target, PROMPTS["tiny"], temperature, graphs)
                    methods.append(method)
                    say(**about, mode=mode, **counted[mode])
                except Exception as error:
                    text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                    at = where(error)
                    say(**about, mode=mode, error=text, at=at, complaint=device.complaint())
            exchanged = {counts["collectives"] for counts in counted.values()}
            if len(exchanged) != 1 or not min(exchanged):
                say(**about, error=f"collectives of a step, recorded and eager: {exchanged}")
    whole = targets["whole"]
    alone = specwb.method("sps", whole, draft=whole)
    measured(alone, whole, PROMPTS["tiny"], 0.0, True)
    device.reset()
    ranks.leave()
    if device.counts()["violations"]:
        say(case="leaving", error=device.complaint())
    # what was recorded among others is recorded anew
    after = measured(alone, whole, PROMPTS["tiny"], 0.0, True)
    if not after["replays"]:
        say(case="a decoding after leaving", error="no graph is replayed")


def silence(folder: Path) -> None:
    """What a rank says, and leaves, where a collective is not answered."""
    here = ranks.join("cuda", timeout=2.0)
    target = specwb.load(folder, ranks=here)
    draft = moved(ranked.deep(), torch.float32)
    method = specwb.method("easyspec", target, draft=draft, execution="ranks")
    began, said = time.monotonic(), "nothing is said"
    try:
        with here.answered():
            for i, _ in enumerate(specwb.rounds(target, [[1, 2, 3]], method, max_new_tokens=60)):
                if i == 5:
                    began = time.monotonic()
                    device.hang()
    except ranks.RanksError as error:
        said = str(error)
    waited = time.monotonic() - began
    ranks.leave()
    counted, joined = device.counts(), torch.distributed.is_initialized()
    about = {"case": f"a silent rank, seen by rank {here.rank}", "waited": round(waited, 1)}
    # the groups of all ranks and of those that the target is parted over
    about |= {"said": said, "aborts": counted["aborts"]}
    good = "did not answer within 2 s" in said and waited < 10 and counted["aborts"] > 1
    if not good or joined or counted["violations"]:
        say(**about, error="not noticed, or not left", complaint=device.complaint())
    else:
        say(**about)


def await_other(folder: Path, rank: int) -> None:
    """Waits until the other process is as far.

    This NCCL's groups wait for nobody, and rank 0, whose process keeps what all of them find each
    other by, must not end while rank 1 still joins.
    """
    (folder / f"rank-{rank}").touch()
    for _ in range(1200):
        if (folder / f"rank-{1 - rank}").exists():
            break
        time.sleep(0.1)


def ending(folder: Path) -> None:
    """A process that ends and has not left: its graphs are given up before NCCL's groups are."""
    last = {}

    def left() -> None:
        joined, counted = torch.distributed.is_initialized(), device.counts()["violations"]
        wrong = joined or counted or not last.get("replays")
        about = {"case": f"an end without leaving, rank {last.get('rank')}"}
        if wrong:
            about["error"] = f"joined: {joined}, violations: {counted}, {device.complaint()}"
        say(**about)

    atexit.register(left)  # before join, so that it is called after what join registers
    here = ranks.join("cuda", timeout=60.0)
    target = specwb.load(folder, ranks=here)
    draft = moved(ranked.deep(), torch.float32)
    method = specwb.method("easyspec", target, draft=draft, execution="ranks")
    last |= measured(method, target, PROMPTS["tiny"], 0.0, True)
    last["rank"] = here.rank
    await_other(folder, here.rank)
    device.reset()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        device.endless()
        {"steps": steps, "silence": silence, "ending": ending}[sys.argv[1]](Path(sys.argv[2]))
