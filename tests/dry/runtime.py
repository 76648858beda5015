"""Makes what a dry run needs: torch's CUDA build in a virtual environment of its own, and the
runtime whose kernels do nothing.

    python tests/dry/runtime.py [--install]

Prints the environment that a script is run in. What cannot be made is said in one line, exit code
3. ``--install`` downloads torch's CUDA build first (about 2.5 GB, 5 GB on disk) where it is not
there; beside it lies a path to this project's own environment, which has everything else.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = Path(os.environ.get("SPECWB_DRY_VENV", ROOT / ".venv-dry"))
BUILD = ROOT / "build" / "dry"
TORCH = "2.13.0"
# three equals signs: where there is a build for the CPU of the same version, two prefer that one
WHEEL = f"torch==={TORCH}"
ROOM = 8 << 30


class Missing(Exception):
    """What a dry run needs is not there; the text says what and what to do."""


def compiler() -> str:
    """The C compiler.

    Raises:
        Missing: there is none, or none that builds for this system.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Missing(f"the dry run needs Linux on x86_64, this is {platform.platform()}")
    for name in ("gcc", "cc", "clang"):
        if found := shutil.which(name):
            return found
    raise Missing("no C compiler: install gcc (and binutils, for nm)")


def site() -> Path:
    """The packages of the environment with torch's CUDA build.

    Raises:
        Missing: it is not there, or is another build.
    """
    python = VENV / "bin" / "python"
    if not python.exists():
        raise Missing(f"no {VENV.name}: make dry installs torch's CUDA build there (5 GB)")
    folder = next((VENV / "lib").glob("python3*/site-packages"), VENV)
    version = folder / "torch" / "version.py"
    if not version.exists():
        raise Missing(f"{VENV.name} has no torch: remove it and run make dry")
    text = version.read_text()
    found = re.search(r"__version__ = '([^']+)'", text)
    if not re.search(r"^cuda[^=\n]*= '\d", text, re.M):
        raise Missing(f"{VENV.name} has a torch without CUDA: remove it and run make dry")
    if not found or found[1].partition("+")[0] != TORCH:
        has = found[1] if found else "?"
        raise Missing(f"{VENV.name} has torch {has}, this needs {TORCH}: remove it, run make dry")
    return folder


def install() -> None:
    """Installs torch's CUDA build where it is not there.

    Raises:
        Missing: there is no room, or the index does not offer it.
    """
    try:
        site()
        return
    except Missing:
        pass
    compiler()  # before five gigabytes are fetched in vain
    if (free := shutil.disk_usage(ROOT).free) < ROOM:
        raise Missing(f"{free >> 30} GiB of disk are free, torch's CUDA build needs {ROOM >> 30}")
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    (folder,) = (VENV / "lib").glob("python3*/site-packages")
    (folder / "specwb_dry.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*pip, "--ignore-installed", WHEEL], capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(VENV)
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["pip failed"]
        raise Missing(f"{WHEEL} cannot be installed: {lines[-1]}")


def _symbols(nm: str, library: Path, *flags: str) -> set[str]:
    out = subprocess.run(
        [nm, *flags, str(library)], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in out.splitlines() if line.strip()}


def build() -> dict[str, str]:
    """Builds the runtime; returns the environment of a dry run.

    Raises:
        Missing: the compiler or torch's CUDA build.
    """
    cc, packages = compiler(), site()
    nm = shutil.which("nm")
    if nm is None:
        raise Missing("no nm: install binutils")
    out = BUILD / "libdry.so"
    environment = {
        "LD_PRELOAD": str(out),
        "LD_LIBRARY_PATH": str(BUILD),
        "DRY_LIBRARY": str(out),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{HERE}",
        "OMP_NUM_THREADS": "1",
    }
    sources = [HERE / "runtime.c", Path(__file__)]
    if out.exists() and all(out.stat().st_mtime > x.stat().st_mtime for x in sources):
        return environment
    BUILD.mkdir(parents=True, exist_ok=True)
    libraries = packages / "torch" / "lib"
    asking = [*libraries.glob("*cuda*.so"), libraries / "libtorch_python.so"]
    asking += [libraries / "libtorch_cpu.so", libraries / "libcaffe2_nvrtc.so"]
    wanted: set[str] = set()
    for library in asking:
        wanted |= _symbols(nm, library, "-D", "--undefined-only")
    headers = packages / "triton" / "backends" / "nvidia" / "include"
    runtime = BUILD / "runtime.o"
    flags = ["-O1", "-w", "-fPIC", f"-I{headers}"]
    subprocess.run([cc, *flags, "-c", str(HERE / "runtime.c"), "-o", str(runtime)], check=True)
    defined = _symbols(nm, runtime, "--defined-only")
    ours = re.compile(r"(cu[A-Z]|cuda|cublas|__cuda|nccl|nvtx|nvml|cupti)")
    stubs = sorted(name for name in wanted - defined if ours.match(name))
    source = BUILD / "stubs.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in stubs))
    shared = ["-shared", "-fPIC", "-w"]
    subprocess.run(
        [cc, *shared, "-Wl,-soname,libdry.so", str(runtime), str(source), "-o", str(out)],
        check=True,
    )
    # what asks for the driver by its name is given the same library
    driver = ["-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", "-x", "c", "/dev/null"]
    driver += ["-x", "none", f"-L{BUILD}", "-l:libdry.so", "-o", str(BUILD / "libcuda.so.1")]
    subprocess.run([cc, *shared, *driver], check=True)
    return environment


def main() -> int:
    try:
        if "--install" in sys.argv[1:]:
            install()
        environment = build()
    except Missing as error:
        print(f"dry run: {error}")
        return 3
    words = [f"{name}={value}" for name, value in environment.items()]
    print(" ".join(["env", *words, str(VENV / "bin" / "python")]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
