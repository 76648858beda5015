"""``python -m scripts.build_lab``: the lab family from text."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.build_lab.build import LAB, build
from specwb.core.errors import SpecwbError


def main(arguments: list[str] | None = None) -> None:
    """Builds the family; a known error becomes one line and exit code 2."""
    parser = argparse.ArgumentParser(
        "python -m scripts.build_lab",
        description="Build the lab family from text; stop and restart it at any moment.",
    )
    add = parser.add_argument
    add("--budget", default="cpu", help="cpu, gpu or smoke, of data/lab/recipe.toml")
    add("--out", type=Path, default=Path("build/lab"), help="folder, where a run continues")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--continue", dest="start_from", action="store_const", const=LAB, help="shipped weights")
    add("--seed", type=int, help="default: the recipe's")
    try:
        out = build(**vars(parser.parse_args(arguments)))
    except SpecwbError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130)
    print(f"the family is in {out}; use it with --target {out}/target --draft {out}/draft")


if __name__ == "__main__":
    main()
