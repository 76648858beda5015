"""Trains the heads of a recipe file, such as those of smol.

    python -m scripts.train_heads talks.jsonl [NAME ..] [--target smol] [--out build/smol]
        [--recipe data/smol/recipe.toml] [--device auto] [--seconds S]

The file has a table ``batch``, whose settings all heads have, and a table ``heads.NAME`` for each,
with its own settings, its ``kind`` where that is not its name, and ``begin`` where it goes on with
a trained head (its folder, or its kind for the target's own); ``store`` is ``"fp16"`` or
``"int8"``. Heads are trained one after another. A run that was interrupted goes on; finished heads
are left alone. Next to their folders lies ``requests.txt``, the fingerprints of what users asked in
the text: with it a test shows that no prompt of an evaluation was trained on.

With ``--seconds`` all heads are trained side by side, each in a process of its own, for about so
many seconds: each takes a few steps beside the others and then as many as fit, in the place of the
recipe's. A large GPU waits for Python where it trains one small head, and is lent by the minute.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import sys
import tempfile
import tomllib
from multiprocessing.synchronize import Barrier
from pathlib import Path

from specwb.core.files import table, write
from specwb.models.load import data_dir
from specwb.training.reading import file_text, trained_on, training_text, turns
from specwb.training.run import first_head, train_head

PROBE = 24
"""Steps by whose median time the number of steps is chosen; the first ones warm up."""


def fingerprint(request: str) -> str:
    """Names a request, whatever its letters' case and its spaces: 12 hexadecimal digits."""
    words = " ".join(request.lower().split())
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def requests(corpus: Path) -> list[str]:
    """The fingerprints of all users' turns of a corpus in JSON lines, sorted."""
    entries = [json.loads(line) for line in file_text(corpus).split("\n") if line.strip()]
    talks = [turns(entry, str(corpus)) for entry in entries if "text" not in entry]
    said = (turn["content"] for talk in talks for turn in talk if turn["role"] == "user")
    return sorted({fingerprint(request) for request in said})


def train(given: argparse.Namespace, name: str, gate: Barrier | None = None) -> None:
    """Trains one head; with ``gate`` for about ``given.seconds``, beside those that wait for it
    too."""
    recipe = tomllib.loads(given.recipe.read_text())
    settings = {**recipe["batch"], **recipe["heads"][name]}
    kind, store = settings.pop("kind", name), recipe.get("store", "fp16")
    begin = settings.pop("begin", None)
    target = trained_on(given.target, given.device)
    first = None if begin is None else first_head(begin, kind, target)
    data, mixture = training_text(target, given.corpus)

    def run(out: Path) -> Path:
        note = given.recipe.name
        return train_head(
            kind,
            target,
            out,
            settings,
            data,
            mixture,
            source="read",
            note=note,
            store=store,
            begin=first,
        )

    if gate is not None:
        chosen = given.out / f"{name}.steps"  # an interrupted run goes on with as many
        try:
            gate.wait()
            if not chosen.exists():
                settings["steps"] = PROBE
                with tempfile.TemporaryDirectory() as scratch:
                    card = table(run(Path(scratch) / name) / "card.json")
                write(str(max(1, int(given.seconds / max(card["step_seconds"], 1e-4)))), chosen)
            gate.wait()
        except BaseException:
            gate.abort()  # the others would wait for this one
            raise
        settings["steps"] = int(chosen.read_text())
    run(given.out / name)


def main() -> None:
    """Trains the heads that are named, by default all of the recipe."""
    parser = argparse.ArgumentParser("python -m scripts.train_heads", description=__doc__)
    add = parser.add_argument
    add("corpus", type=Path, help=".jsonl or .jsonl.xz file, such as specwb train talks writes")
    add("names", nargs="*", help="heads of the recipe; default all")
    add("--target", default="smol")
    add("--out", type=Path, default=Path("build/smol"))
    add("--recipe", type=Path, default=data_dir() / "smol" / "recipe.toml")
    add("--device", default="auto")
    add("--seconds", type=float, help="train all heads side by side, for about so long")
    given = parser.parse_args()
    known = list(tomllib.loads(given.recipe.read_text())["heads"])
    names = given.names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{given.recipe} has no head {unknown[0]!r}; it has {', '.join(known)}")
    if given.seconds is not None and not 0 < given.seconds < math.inf:
        parser.error(f"--seconds must be above 0, got {given.seconds:g}")
    if given.seconds is None:
        for name in names:
            train(given, name)
    else:
        # forks of a process that has imported all of this and has not touched a GPU
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scripts.train_heads"])
        gate = context.Barrier(len(names))
        processes = [context.Process(target=train, args=(given, name, gate)) for name in names]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if failed := [name for name, p in zip(names, processes, strict=True) if p.exitcode]:
            sys.exit(f"not trained: {', '.join(failed)}; the same command goes on")
    content = "".join(f"{name}\n" for name in requests(given.corpus))
    (given.out / "requests.txt").write_text(content)


if __name__ == "__main__":
    main()
