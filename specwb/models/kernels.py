"""Vector code for the compiled forward pass, written as LLVM intrinsics of numba.

Every function computes with single IEEE operations (fma, add, multiply, divide) in an order that
depends on nothing but the sizes of one sum. So a number has the same bits whether it is computed
alone or among others, by one thread or by several; :mod:`specwb.models.compiled` builds on that.

Addresses are integers; counts, strides and columns are in elements. The type of ``like``, an array,
is that of the weights, or of keys and values: float32, uint16 for bfloat16, or, of weights, int8,
of which each row is followed by its scale, a float32. They are widened to float32 when they are
loaded. All arithmetic is in float32.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
if platform.machine().lower() in ("x86_64", "amd64") and not _FEATURES.get("fma"):
    # LLVM would call the C library for every single fma
    raise ImportError("this processor has no instruction for fma")
IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 32 if IS_WIDE else 16
"""Columns of a weight that one iteration of a product takes; all are a multiple of it."""
SUM = 32 if IS_WIDE else 8
"""Lanes of a product's sum: two vector registers with AVX-512, which has 32 of them, and one with
AVX2, which has 16."""
MOST = 6
"""Tokens that are multiplied at a time where there are many; their sums fill the registers, see
ROWS."""
AT_ONCE = 8
"""Tokens that a tile takes at most: slower than MOST, but faster than two passes of fewer."""
ROWS = {1: (4, 2, 1), 2: (4, 2, 1), 3: (4, 2, 1), 4: (2, 1), 5: (2, 1), 6: (2, 1), 7: (1,), 8: (1,)}
"""Number of tokens -> rows of a weight that are multiplied at a time, most first."""
AHEAD = 8192
"""How many bytes ahead a weight is prefetched that comes from memory. A tile with many tokens reads
too few bytes in the processor's window of instructions to keep the memory busy."""
NARROW = 16
"""Lanes everywhere else; norms, heads and rows are multiples of it."""

FLOAT, WORD, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
ADDRESS = types.intp
Builder: TypeAlias = Any  # an IRBuilder of llvmlite
Values = Sequence[Any]


def _vector(kind: Any, lanes: int) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


def _long(number: int) -> ir.Constant:
    return ir.Constant(LONG, number)


def _all(number: float, lanes: int = NARROW) -> ir.Constant:
    return ir.Constant(_vector(FLOAT, lanes), [float(number)] * lanes)


def _call(b: Builder, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)


def _fma(b: Builder, x: Any, y: Any, z: Any) -> Any:
    return _call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


def _at(b: Builder, base: Any, offset: Any, size: int = 4) -> Any:
    offset = _long(offset) if isinstance(offset, int) else offset
    return b.add(base, b.mul(offset, _long(size)))


def _load(b: Builder, address: Any, kind: Any, align: int = 4) -> Any:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _store(b: Builder, value: Any, address: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 4


def _widened(b: Builder, address: Any, size: int, lanes: int) -> Any:
    """Numbers of 4, 2 or 1 bytes as float32."""
    if size == 4:
        return _load(b, address, _vector(FLOAT, lanes))
    wide = _vector(WORD, lanes)
    if size == 1:
        whole = b.sext(_load(b, address, _vector(ir.IntType(8), lanes), 1), wide)
        return b.sitofp(whole, _vector(FLOAT, lanes))
    halves = b.zext(_load(b, address, _vector(ir.IntType(16), lanes), 2), wide)
    return b.bitcast(b.shl(halves, ir.Constant(wide, [16] * lanes)), _vector(FLOAT, lanes))


def _spread(b: Builder, number: Any) -> Any:
    one = b.insert_element(
        ir.Constant(_vector(FLOAT, NARROW), ir.Undefined), number, ir.Constant(WORD, 0)
    )
    return b.shuffle_vector(one, one, ir.Constant(_vector(WORD, NARROW), [0] * NARROW))


def _joined(b: Builder, vectors: Values, join: Callable[..., Any]) -> list[Any]:
    """The sum (or whatever ``join`` is) across the lanes of each vector: their upper halves are
    joined to the lower ones until one lane is left. Several vectors are joined at once, in
    vectors of their results, in the same order as one alone."""
    width, held = vectors[0].type.count, 1  # each vector has so many results of so many lanes
    vectors = list(vectors)
    while width > 1:
        pairs = [vectors[i : i + 2] for i in range(0, len(vectors), 2)]
        vectors = []
        for a, *other in pairs:
            c = other[0] if other else a
            starts = [s * width for s in range(held * (1 + len(other)))]
            low = [s + lane for s in starts for lane in range(width // 2)]
            kind = _vector(WORD, len(low))
            lower, upper = (
                b.shuffle_vector(a, c, ir.Constant(kind, [x + shift for x in low]))
                for shift in (0, width // 2)
            )
            vectors.append(join(lower, upper))
        if len(pairs[-1]) == 1 and len(pairs) > 1:  # the last one as long as the others
            last, whole = vectors[-1], vectors[0].type.count
            lanes = [*range(last.type.count), *[0] * (whole - last.type.count)]
            kind = _vector(WORD, whole)
            vectors[-1] = b.shuffle_vector(last, last, ir.Constant(kind, lanes))
        held *= len(pairs[0])
        width //= 2
    return vectors


def _sums(b: Builder, vectors: Values) -> list[Any]:
    """The sums across lanes, each a number."""
    joined = _joined(b, vectors, b.fadd)
    size = joined[0].type.count if isinstance(joined[0].type, ir.VectorType) else 1
    return [
        b.extract_element(joined[i // size], ir.Constant(WORD, i % size))
        for i in range(len(vectors))
    ]


def _loop(b: Builder, count: Any, start: Values, body: Callable[..., Values]) -> Values:
    """Run ``body(i, values) -> values`` for i in 0..count - 1, at least once; the last values."""
    before = b.block
    again, behind = b.append_basic_block("again"), b.append_basic_block("behind")
    b.branch(again)
    b.position_at_end(again)
    i = b.phi(LONG)
    i.add_incoming(_long(0), before)
    held = [b.phi(s.type) for s in start]
    values = body(i, held)
    for phi, first, value in zip(held, start, values, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, b.block)
    following = b.add(i, _long(1))
    i.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, count), again, behind)
    b.position_at_end(behind)
    return values


def _function(b: Builder, name: str, args: Values, build: Callable[..., None]) -> None:
    """Call a function of its own, made once a module: code that is not inlined is compiled once."""
    function = b.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [a.type for a in args])
        function = ir.Function(b.module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        build(inner, *function.args)
        inner.ret_void()
    b.call(function, args)


def _size(like: Any) -> int:
    return {"float32": 4, "uint16": 2, "int8": 1}[str(like.dtype)]


def _row_bytes(b: Builder, columns: Any, size: int) -> Any:
    """The bytes of a weight's row: in int8 its scale, a float32, follows its integers."""
    return b.add(columns, _long(4)) if size == 1 else b.mul(columns, _long(size))


def _tile(
    b: Builder,
    size: int,
    tokens: int,
    rows: int,
    w: Any,
    x: Any,
    out: Any,
    stride: Any,
    columns: Any,
    further: Any,
) -> None:
    """Some tokens times some rows: every sum is one vector over the columns in order."""
    step = _row_bytes(b, columns, size)
    weights = [(b.add(w, b.mul(_long(r), step)), size) for r in range(rows)]
    inputs = [(_at(b, x, b.mul(_long(t), columns)), 4) for t in range(tokens)]
    # the fewer of them are held in registers, the others loaded one by one
    held, passing = (weights, inputs) if rows < tokens else (inputs, weights)

    def body(i: Any, sums: Values) -> Values:
        first, sums = b.mul(i, _long(LANES)), list(sums)
        for line in range(0, LANES * size, 64):
            for row, _ in weights:
                ahead = _at(b, b.add(b.add(row, further), _long(line)), first, size)
                # into the second cache, which waits for more lines of the memory than the first
                read, second, data = (ir.Constant(WORD, x) for x in (0, 2, 1))
                ahead = b.inttoptr(ahead, ir.IntType(8).as_pointer())
                _call(b, "llvm.prefetch.p0", ir.VoidType(), ahead, read, second, data)
        for column in range(0, LANES, SUM):
            at = b.add(first, _long(column))
            us = [_widened(b, _at(b, one, at, each), each, SUM) for one, each in held]
            for j, (one, each) in enumerate(passing):
                v = _widened(b, _at(b, one, at, each), each, SUM)
                for k, u in enumerate(us):
                    r, t = (k, j) if held is weights else (j, k)
                    sums[r * tokens + t] = _fma(b, v, u, sums[r * tokens + t])
        return sums

    zeros = [_all(0, SUM)] * (rows * tokens)
    for i, total in enumerate(_sums(b, _loop(b, b.sdiv(columns, _long(LANES)), zeros, body))):
        r, t = divmod(i, tokens)
        if size == 1:
            total = b.fmul(total, _load(b, b.add(weights[r][0], columns), FLOAT))
        _store(b, total, _at(b, out, b.add(b.mul(_long(t), stride), _long(r))))


@intrinsic
def multiply(ctx, like, w, columns, rows, x, tokens, out, stride, further):
    """``out[t, r] = sum over c of w[r, c] * x[t, c]``, of ``rows`` rows and at most AT_ONCE tokens;
    ``x`` is ``[tokens, columns]``, ``out`` has rows of ``stride`` numbers. What lies ``further``
    bytes behind each weight is prefetched."""
    size = _size(like)

    def sweep(many: int) -> Callable[..., None]:
        def build(b, w, columns, rows, x, out, stride, further):
            done = _long(0)
            for each in ROWS[many]:
                begin, times = done, b.sdiv(b.sub(rows, done), _long(each))

                def body(i, _, begin=begin, each=each):
                    row = b.add(begin, b.mul(i, _long(each)))
                    start = b.add(w, b.mul(row, _row_bytes(b, columns, size)))
                    args = start, x, _at(b, out, row), stride, columns, further
                    name = f"specwb_tile_{many}_{each}_{size}"
                    _function(b, name, args, lambda b, *a: _tile(b, size, many, each, *a))
                    return []

                with b.if_then(b.icmp_signed(">", times, _long(0))):
                    _loop(b, times, [], body)
                done = b.add(begin, b.mul(times, _long(each)))

        return build

    def codegen(cg, b, sig, args):
        _, w, columns, rows, x, tokens, out, stride, further = args
        done = b.append_basic_block("done")
        switch = b.switch(tokens, done)
        for many in range(1, AT_ONCE + 1):
            block = b.append_basic_block(f"tokens_{many}")
            switch.add_case(_long(many), block)
            b.position_at_end(block)
            given = w, columns, rows, x, out, stride, further
            _function(b, f"specwb_sweep_{many}_{size}", given, sweep(many))
            b.branch(done)
        b.position_at_end(done)
        return cg.get_dummy_value()

    return types.void(like, *[ADDRESS] * 8), codegen


@intrinsic
def squares(ctx, x, count):
    """The sum of the squares of ``count`` numbers, a multiple of NARROW."""

    def codegen(cg, b, sig, args):
        def body(i, sums):
            v = _load(b, _at(b, args[0], i, 4 * NARROW), _vector(FLOAT, NARROW))
            return [_fma(b, v, v, sums[0])]

        return _sums(b, _loop(b, b.sdiv(args[1], _long(NARROW)), [_all(0)], body))[0]

    return types.float32(ADDRESS, ADDRESS), codegen


@intrinsic(prefer_literal=True)
def scores(ctx, like, dim, q, keys, stride, count, out):
    """``out[j] = sum over d of q[d] * keys[j, d]`` of ``count`` keys, ``stride`` apart; ``dim`` is
    a literal. Sixteen keys are summed across lanes at once, the rest one by one."""
    size, width = _size(like), dim.literal_value

    def some(b, many, at, out, stride, qs):
        sums = []
        for j in range(many):
            key = _at(b, at, b.mul(_long(j), stride), size)
            parts = [
                _widened(b, _at(b, key, d, size), size, NARROW) for d in range(0, width, NARROW)
            ]
            total = b.fmul(qs[0], parts[0])
            for one, part in zip(qs[1:], parts[1:], strict=True):
                total = _fma(b, one, part, total)
            sums.append(total)
        if many == 1:
            _store(b, _sums(b, sums)[0], out)
        else:
            _store(b, _joined(b, sums, b.fadd)[0], out)

    def build(b, q, keys, stride, count, out):
        qs = [_load(b, _at(b, q, d), _vector(FLOAT, NARROW)) for d in range(0, width, NARROW)]
        blocks = b.sdiv(count, _long(NARROW))
        rest = b.sub(count, b.mul(blocks, _long(NARROW)))
        for many, times, first in ((NARROW, blocks, _long(0)), (1, rest, blocks)):
            begin = b.mul(first, _long(NARROW))

            def body(i, _, many=many, begin=begin):
                j = b.add(begin, b.mul(i, _long(many)))
                some(b, many, _at(b, keys, b.mul(j, stride), size), _at(b, out, j), stride, qs)
                return []

            with b.if_then(b.icmp_signed(">", times, _long(0))):
                _loop(b, times, [], body)

    def codegen(cg, b, sig, args):
        _function(b, f"specwb_scores_{width}_{size}", args[2:], build)
        return cg.get_dummy_value()

    return types.void(like, dim, *[ADDRESS] * 5), codegen


@intrinsic(prefer_literal=True)
def weigh(ctx, like, width, p, values, stride, count, out):
    """``out[d] += sum over j of p[j] * values[j, d]``, j in order, of ``width`` numbers, a
    literal."""
    size, dim = _size(like), width.literal_value

    def build(b, p, values, stride, count, out):
        def body(j, sums):
            share = _spread(b, _load(b, _at(b, p, j), FLOAT))
            at = _at(b, values, b.mul(j, stride), size)
            return [
                _fma(b, share, _widened(b, _at(b, at, NARROW * i, size), size, NARROW), total)
                for i, total in enumerate(sums)
            ]

        start = [_load(b, _at(b, out, d), _vector(FLOAT, NARROW)) for d in range(0, dim, NARROW)]
        for i, total in enumerate(_loop(b, count, start, body)):
            _store(b, total, _at(b, out, NARROW * i))

    def codegen(cg, b, sig, args):
        _function(b, f"specwb_weigh_{dim}_{size}", args[2:], build)
        return cg.get_dummy_value()

    return types.void(like, width, *[ADDRESS] * 5), codegen


def _exp(b: Builder, x: Any) -> Any:
    """``exp(x)``, relative error below 2e-7; 0 below -87.

    x = k log 2 + r, and a polynomial of degree 7 in r (Cephes' ``expf``).
    """
    wide = _vector(WORD, NARROW)
    low = b.fcmp_ordered("<", x, _all(-87.0))
    high = b.fcmp_ordered(">", x, _all(88.0))
    x = b.select(high, _all(88.0), b.select(low, _all(-87.0), x))
    magic = _all(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
    k = b.fsub(_fma(b, x, _all(1.44269504088896341), magic), magic)
    r = _fma(b, k, _all(-0.693359375), x)
    r = _fma(b, k, _all(2.12194440e-4), r)
    p = _all(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = _fma(b, p, r, _all(c))
    y = b.fadd(_fma(b, p, b.fmul(r, r), r), _all(1.0))
    biased = b.add(b.fptosi(k, wide), ir.Constant(wide, [127] * NARROW))
    power = b.bitcast(b.shl(biased, ir.Constant(wide, [23] * NARROW)), y.type)
    return b.select(low, _all(0.0), b.fmul(y, power))


@intrinsic
def soften(ctx, s, count):
    """``s[j] = exp(s[j] - max s)`` of ``count`` numbers, a multiple of NARROW; returns their
    sum."""

    def codegen(cg, b, sig, args):
        s, blocks = args[0], b.sdiv(args[1], _long(NARROW))

        def block(i):
            return _load(b, _at(b, s, i, 4 * NARROW), _vector(FLOAT, NARROW))

        def larger(x, y):
            return b.select(b.fcmp_ordered(">", x, y), x, y)

        lowest = [_all(float("-inf"))]
        (top,) = _loop(b, blocks, lowest, lambda i, held: [larger(block(i), held[0])])
        (top,) = _joined(b, [top], larger)
        top = _spread(b, b.extract_element(top, ir.Constant(WORD, 0)))

        def body(i, sums):
            e = _exp(b, b.fsub(block(i), top))
            _store(b, e, _at(b, s, i, 4 * NARROW))
            return [b.fadd(sums[0], e)]

        return _sums(b, _loop(b, blocks, [_all(0)], body))[0]

    return types.float32(ADDRESS, ADDRESS), codegen


@intrinsic
def gated(ctx, gate, up, out):
    """``out = gate / (1 + exp(-gate)) * up`` of NARROW numbers."""

    def codegen(cg, b, sig, args):
        g, u = (_load(b, address, _vector(FLOAT, NARROW)) for address in args[:2])
        silu = b.fdiv(g, b.fadd(_all(1), _exp(b, b.fneg(g))))
        _store(b, b.fmul(silu, u), args[2])
        return cg.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), codegen


@intrinsic
def take(ctx, address):
    """Add 1 to an integer that threads share; returns what it was."""

    def codegen(cg, b, sig, args):
        shared = b.inttoptr(args[0], LONG.as_pointer())
        return b.atomic_rmw("add", shared, _long(1), "acq_rel")

    return ADDRESS(ADDRESS), codegen


@intrinsic
def shared(ctx, address):
    """An integer that threads share."""

    def codegen(cg, b, sig, args):
        return b.load_atomic(b.inttoptr(args[0], LONG.as_pointer()), "acquire", 8)

    return ADDRESS(ADDRESS), codegen


@intrinsic
def give_way(ctx):
    """Let another thread have the processor: the one that is waited for may have none."""

    def codegen(cg, b, sig, args):
        _call(b, "sched_yield", WORD)
        return cg.get_dummy_value()

    return types.void(), codegen
