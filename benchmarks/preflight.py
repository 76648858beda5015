"""What a GPU run needs, looked at before it begins: one line says what is missing and what to do.

python benchmarks/preflight.py [--smoke]
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
OLDEST = (8, 0)
ROOM = 12  # GiB that every part may take


def problem() -> str | None:
    """What is in the way of a run, and what to do about it; None: nothing."""
    build = f"torch {torch.__version__}, built for CUDA {torch.version.cuda},"
    if not torch.cuda.is_available():
        return f"{build} can use no device: look at nvidia-smi; make dry checks the code without"
    name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    if capability < OLDEST:
        return f"{name} has compute capability {capability}, bfloat16 needs {OLDEST} here"
    try:
        free, total = (n / 2**30 for n in torch.cuda.mem_get_info(0))
    except RuntimeError as error:  # so full that not even a context fits, or broken
        first = str(error).partition("\n")[0]
        return f"{name} cannot be used ({first}): end what nvidia-smi lists there"
    if free < min(ROOM, 0.9 * total):
        size = f"{free:.1f} of {total:.1f} GiB"
        return f"{size} of {name} are free, {ROOM} are needed: end what nvidia-smi lists there"
    return None


@dataclass(frozen=True)
class Values:
    """What a device computed beside the CPU.

    Attributes:
        wrong: in words, the cases whose texts are not the CPU's, or that ended in an error.
        compared: how many were run.
        cases: how many there are.
    """

    wrong: list[str]
    compared: int
    cases: int


def smoke(device: str = "cuda", seconds: float = 30.0) -> Values:
    """Decodes with every method and every rule on tiny models in float64, on the CPU and on the
    device, whose texts must be equal.

    Args:
        device: what is compared with the CPU.
        seconds: cases that would begin later are left out.
    """
    sys.path.insert(0, str(HERE.parent / "tests"))
    import test_protocol as protocol
    import tiny

    import specwb
    from specwb.core.flow import RuleMismatch
    from specwb.rules import RULES

    host, began = tiny.target("everything", tiny.EXACT), time.monotonic()
    there = specwb.load(copy.deepcopy(host.model).to(device), device=device)
    draft = tiny.draft("everything", 0.02, tiny.EXACT).model

    def texts(key: str, options: dict, target: specwb.Target, place: str) -> list | None:
        given = {
            name: copy.deepcopy(tiny.head(value.kind, "everything", dtype=tiny.EXACT)).to(place)
            if isinstance(value, protocol.Head)
            else value
            for name, value in {**protocol.NEEDS.get(key, {}), **options}.items()
        }
        if "draft" in specwb.METHODS[key].options:
            given["draft"] = specwb.load(copy.deepcopy(draft).to(place), device=place)
        try:
            method = specwb.method(key, target, **given)
        except RuleMismatch:
            return None
        return [
            specwb.decode(
                target, tiny.PROMPTS, method, temperature=temperature, max_new_tokens=24, seed=1
            ).tokens
            for temperature in (0.0, 1.0)
        ]

    cases = [(key, dict(options)) for key, options in protocol.FIRST]
    cases += [("mcsd", {"tree": (2, 1), "rule": rule, **how}) for rule in RULES for how in DRAWS]
    wrong, compared = [], 0
    for key, options in cases:
        if time.monotonic() - began > seconds:
            break
        compared += 1
        wanted = texts(key, options, host, "cpu")
        try:
            same = texts(key, options, there, device) == wanted
            said = "" if same else "other text than on the CPU"
        except Exception as error:  # one case that fails says nothing of the others
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if said:
            wrong.append(f"{protocol.named(key, options)}: {said}")
    return Values(wrong, compared, len(cases))


DRAWS: list[dict] = [{"draw": "without"}, {"draw": "with"}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="compare values with the CPU's")
    asked = parser.parse_args()
    if wrong := problem():
        print(f"make gpu: {wrong}")
        return 2
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    if asked.smoke:
        values = smoke()
        for text in values.wrong:
            print(f"  {text}")
        ran = f"{values.compared} of {values.cases} cases"
        print(f"values of {ran}: " + ("NOT those of the CPU" if values.wrong else "the CPU's"))
        return 1 if values.wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
