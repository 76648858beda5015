"""What a GPU run needs, looked at before it begins: one line says what is missing and what to do.

python benchmarks/preflight.py [--smoke]
"""

from __future__ import annotations

import argparse
import copy
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
OLDEST = (8, 0)
ROOM = 12  # GiB that every part may take
# NVIDIA, CUDA compatibility: the first driver on Linux for every major version of CUDA
DRIVERS = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class Facts:
    """What was found out about a machine.

    Attributes:
        torch: its version.
        cuda: the version of CUDA that it was built for; None: none.
        devices: how many devices torch can use.
        hardware: whether the system has an NVIDIA device, whatever torch says.
        driver: the driver's version, "" where it is not known.
        name: of the first device.
        capability: its compute capability.
        architectures: those that torch was built for, such as ``sm_80``.
        free: GiB of its memory that are free.
        total: GiB of its memory.
        error: what the device, or ``nvidia-smi``, answered where it could not be asked.
    """

    torch: str
    cuda: str | None
    devices: int
    hardware: bool
    driver: str = ""
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    architectures: tuple[str, ...] = ()
    free: float = 0.0
    total: float = 0.0
    error: str = ""


class Unanswered(Exception):
    """``nvidia-smi`` does not end; what asks the driver then may not either."""


def driver_version(seconds: float = 30.0) -> str:
    """What ``nvidia-smi`` says, or the kernel module, or "".

    Raises:
        Unanswered: after so many seconds.
    """
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(
                query, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unanswered(f"nvidia-smi did not answer within {seconds:.0f} s") from None
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    module = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", module.read_text() if module.exists() else "")
    return found[1] if found else ""


def facts() -> Facts:
    """What there is on this machine."""
    build = torch.__version__, torch.version.cuda
    try:
        driver = driver_version()
    except Unanswered as error:
        return Facts(*build, 0, True, error=str(error))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    hardware = bool(driver) or Path("/dev/nvidia0").exists() or devices > 0
    machine = (*build, devices, hardware, driver)
    if not devices:
        return Facts(*machine)
    name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    known = (name, capability, tuple(torch.cuda.get_arch_list()))
    try:
        free, total = (n / 2**30 for n in torch.cuda.mem_get_info(0))
    except RuntimeError as error:  # a device so full that not even a context fits, or a broken one
        said = str(error).partition("\n")[0]
        return Facts(*machine, *known, error=said)
    return Facts(*machine, *known, free, total)


def problem(found: Facts) -> str | None:
    """What is in the way of a run, and what to do about it; None: nothing."""
    if not found.hardware:
        return "there is no NVIDIA device; make dry checks the CUDA code without one"
    if found.error and not found.devices:
        return f"{found.error}: restart the driver or the machine"
    if found.cuda is None:
        return f"torch {found.torch} is a build without CUDA: install its build for CUDA"
    if not found.devices:
        return _unusable(found)
    arch = "sm_{}{}".format(*found.capability)
    device = f"{found.name} ({arch})"
    if found.capability < OLDEST:
        wanted = "sm_{}{}".format(*OLDEST)
        return f"{device} is older than {wanted}, which bfloat16 needs here: take a newer device"
    majors = {int(a[3:]) // 10 for a in found.architectures if a[3:].isdigit()}
    if found.architectures and found.capability[0] not in majors:
        has = ", ".join(found.architectures)
        return f"torch {found.torch} has no kernels for {device}, only {has}: install another build"
    if found.error:
        return f"{device} cannot be used ({found.error}): end what nvidia-smi lists there"
    if found.free < min(ROOM, 0.9 * found.total):
        size = f"{found.free:.1f} of {found.total:.1f} GiB"
        return f"{size} of {device} are free, {ROOM} are needed: end what nvidia-smi lists there"
    return None


def _unusable(found: Facts) -> str:
    """Why torch sees no device although there is one."""
    assert found.cuda is not None
    major = int(found.cuda.split(".")[0])
    needed = DRIVERS.get(major)
    has = int(found.driver.split(".")[0]) if found.driver else None
    build = f"torch {found.torch}, built for CUDA {found.cuda},"
    if needed is not None and has is not None and has < needed:
        fits = [cuda for cuda, driver in DRIVERS.items() if driver <= has]
        other = f", or install torch's build for CUDA {max(fits)}" if fits else ""
        return f"{build} needs driver {needed} or newer, this is {found.driver}: update it{other}"
    seen = f"driver {found.driver or 'unknown'}"
    hint = "look at CUDA_VISIBLE_DEVICES, and whether nvidia-smi runs"
    return f"{build} can use no device ({seen}): {hint}"


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


DRAWS: list[dict] = [{"draw": "without"}, {"draw": "with"}, {"draw": "coupled", "tree": (2, 1)}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="compare values with the CPU's")
    asked = parser.parse_args()
    found = facts()
    if wrong := problem(found):
        print(f"make gpu: {wrong}")
        return 2
    print(f"{found.name}, driver {found.driver}, torch {found.torch}: {found.free:.0f} GiB free")
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
