"""Trains the heads of a recipe file one after another, such as those of smol.

    python -m scripts.train_heads talks.jsonl [NAME ..] [--target smol] [--out build/smol]
        [--recipe data/smol/recipe.toml] [--device auto]

The file has a table ``batch``, whose settings all heads have, and a table ``heads.NAME`` for each,
with its own settings and its ``kind`` where that is not its name; ``store`` is ``"fp16"`` or
``"int8"``. A run that was interrupted goes on; finished heads are left alone. Next to their folders
lies ``requests.txt``, the fingerprints of what users asked in the text: with it a test shows that
no prompt of an evaluation was trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tomllib
from pathlib import Path

from specwb.models.load import data_dir
from specwb.training.reading import trained_on, training_text, turns
from specwb.training.run import train_head


def fingerprint(request: str) -> str:
    """Names a request, whatever its letters' case and its spaces: 12 hexadecimal digits."""
    words = " ".join(request.lower().split())
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def requests(corpus: Path) -> list[str]:
    """The fingerprints of all users' turns of a .jsonl file, sorted."""
    entries = [json.loads(line) for line in corpus.read_text("utf-8").split("\n") if line.strip()]
    talks = [turns(entry, str(corpus)) for entry in entries if "text" not in entry]
    said = (turn["content"] for talk in talks for turn in talk if turn["role"] == "user")
    return sorted({fingerprint(request) for request in said})


def main() -> None:
    """Trains the heads that are named, by default all of the recipe."""
    parser = argparse.ArgumentParser("python -m scripts.train_heads", description=__doc__)
    add = parser.add_argument
    add("corpus", type=Path, help=".jsonl file, such as specwb train talks writes")
    add("names", nargs="*", help="heads of the recipe; default all")
    add("--target", default="smol")
    add("--out", type=Path, default=Path("build/smol"))
    add("--recipe", type=Path, default=data_dir() / "smol" / "recipe.toml")
    add("--device", default="auto")
    given = parser.parse_args()
    recipe = tomllib.loads(given.recipe.read_text())
    target = trained_on(given.target, given.device)
    data, mixture = training_text(target, given.corpus)
    for name in given.names or recipe["heads"]:
        settings = {**recipe["batch"], **recipe["heads"][name]}
        kind = settings.pop("kind", name)
        train_head(
            kind,
            target,
            given.out / name,
            settings,
            data,
            mixture,
            source="read",
            note=given.recipe.name,
            store=recipe.get("store", "fp16"),
        )
    content = "".join(f"{name}\n" for name in requests(given.corpus))
    (given.out / "requests.txt").write_text(content)


if __name__ == "__main__":
    main()
