"""Compiles every fused kernel ahead of time for sm_80 and sm_90, without a device, and prints one
line of JSON for each: registers, bytes of shared memory, bytes of stack (spills go there), and how
many loads of 16 bytes a thread its machine code has. ``python tests/kernels/ahead.py [sm ..]``;
Triton's wheel brings the assembler and disassembler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specwb.kernels import attention, draw, greedy, layers, verification

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
HALF, REAL, TOKENS, BYTES, DOUBLE = "*bf16", "*fp32", "*i64", "*i8", "*fp64"
# what pointers with these names point to
POINTERS = {
    **dict.fromkeys(("logits", "heads", "cos", "sin", "gains", "queries", "cache"), HALF),
    **dict.fromkeys(("product", "out", "x", "a", "gain", "total", "normed"), HALF),
    **dict.fromkeys(("key", "value", "flat", "sinks"), HALF),
    **dict.fromkeys(("partners", "slots", "base", "low"), TOKENS),
    **dict.fromkeys(("accs",), REAL),
    **dict.fromkeys(("tops", "masses", "q", "distribution"), REAL),
    **dict.fromkeys(
        ("tokens", "q_row", "kids", "trail", "stops", "path", "best", "parent", "depth"), TOKENS
    ),
    **dict.fromkeys(("accepted", "bonus"), TOKENS),
    **dict.fromkeys(("valid", "ok", "sound", "mask"), BYTES),
    **dict.fromkeys(("u", "amounts", "parts"), DOUBLE),
}
# integers that are multiples of 16 where the vocabulary is
ALIGNED = ("V", "stride", "stride_b", "stride_n", "q_b", "q_r", "DIM", "WIDTH", "SIZE")
ALIGNED += ("stride_h", "stride_s")
# in the attention these are a model's numbers, and a mask is added
ATTENTION = {"q": HALF, "mask": HALF}
HEAD = {"CAP": True, "QUERIES": 64, "DIM": 128, "WIDE": False}
WIDE = {"BLOCK": 4096}
TREE = {"LISTED": 4, "PATH": 8}
KERNELS = (
    (draw.draw_kernel, {**WIDE, "BLOCKS": 64, "DRAWS": 4}, 16),
    (verification.statistics_kernel, WIDE, 16),
    *(
        (
            verification.rejections_kernel,
            {"BLOCK": verification.NARROW, **TREE, "WITHOUT": without},
            verification.WARPS,
        )
        for without in (False, True)
    ),
    (verification.point_kernel, TREE, 1),
    *(
        (
            verification.residual_kernel,
            {**WIDE, "PARTS": 64, "LISTED": 4, "POINT": point, "WRITE": write},
            16,
        )
        for point in (False, True)
        for write in (False, True)
    ),
    (greedy.best_kernel, WIDE, 16),
    (greedy.follow_kernel, {"NODES": 32, "PATH": 8}, 4),
    (layers.rotate_kernel, {"NORM": True, "WIDTH": 128}, 1),
    (layers.gated_kernel, {"BLOCK": 1024}, 4),
    (layers.add_norm_kernel, {"BLOCK": 4096}, 16),
    (attention.prefix_kernel, {**HEAD, "LOW": True, "LENGTH": 256, "KEYS": 32}, 4),
    (attention.merge_kernel, {**HEAD, "SINKS": True, "KEYS": 32}, 8),
    (attention.merge_kernel, {**HEAD, "SINKS": True, "KEYS": 128}, 8),
)
# the largest that float32 is given, where numbers of a model are twice as large
SINGLE = ((attention.merge_kernel, {**HEAD, "DIM": 64, "SINKS": True, "KEYS": 16}, 8),)
# these read single numbers, or a head at a time
SCALARS = ("point_kernel", "follow_kernel", "rotate_kernel")


def compiled(kernel, constants: dict, warps: int, sm: int, half: str = HALF) -> dict:
    """What the compiler made of a kernel whose models have numbers of the type ``half``."""
    names = kernel.arg_names
    kinds = {"eps": "fp32", "scale": "fp32", "cap": "fp32", **POINTERS}
    # what a launch would make of a number, where the kernel says so
    kinds |= {p.name: p.annotation_type for p in kernel.params if p.annotation_type}
    assert kinds.get("T", "fp64") == "fp64"  # a temperature is not to be rounded
    if "scale" in names:
        kinds |= ATTENTION
    kinds = {name: half if kind == HALF else kind for name, kind in kinds.items()}
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names
    }
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind.startswith("*") or (name in ALIGNED and name not in constants)
    }
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs, attributes)
    done = triton.compile(source, GPUTarget("cuda", sm, 32), {"num_warps": warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("nvdisasm", file.name)
    return {
        "kernel": kernel.__name__,
        "sm": sm,
        "constants": constants,
        "threads": 32 * warps,
        "reads_rows": kernel.__name__ not in SCALARS,
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "shared": done.metadata.shared,
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        "local": len(re.findall(r"\b(?:LDL|STL)\b", code)),
        "wide_loads": code.count("LDG.E.128"),
        "loads": code.count("LDG"),
    }


def _tool(name: str, *arguments: str) -> str:
    command = [str(TOOLS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for sm in map(int, sys.argv[1:] or ("80", "90")):
        for kernels, half in ((KERNELS, HALF), (SINGLE, REAL)):
            for kernel, constants, warps in kernels:
                print(json.dumps(compiled(kernel, constants, warps, sm, half)), flush=True)
