"""SIMD vectors as numba types: `base + scale * tau` on 64 elements at once. Knows no file formats and no merging.

LLVM's loop vectoriser gives up at a branch or a widened integer; a vector type can't be given up on. LLVM splits the
lanes into the registers that the machine has, SSE2 to AVX-512 or NEON. Nothing is reassociated or contracted, so every
lane rounds as numpy does.
"""

from __future__ import annotations

import operator
from inspect import signature as signature_of
from typing import TYPE_CHECKING, Any, cast

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

if TYPE_CHECKING:
    from collections.abc import Callable


def _lanes() -> int:
    """As many that four float32 accumulators fit the registers: 32 of 64 bytes with AVX-512, else 16 of 32 or less."""
    try:
        return 64 if binding.get_host_cpu_features().get("avx512f") else 32
    except RuntimeError:  # LLVM can't tell on this system
        return 32


LANES = _lanes()
"""Elements of a vector, and bits of a mask: at most 64, so that a mask is one machine word and cheap to count."""

Lanes = Any
"""A vector in a signature; numba knows which."""

_REALS = {"float": ir.FloatType(), "double": ir.DoubleType()}


class Vector(types.Type):
    """`lanes` numbers of one kind: "float", "double", "i1" (a mask), or unsigned "i8", "i16", "i32", "i64"."""

    def __init__(self, kind: str, lanes: int = LANES) -> None:
        self.kind, self.lanes = kind, lanes
        super().__init__(name=f"Vector({kind}, {lanes})")

    @property
    def llvm(self) -> Any:
        """The LLVM type."""
        return ir.VectorType(_REALS[self.kind] if self.real else ir.IntType(int(self.kind[1:])), self.lanes)

    @property
    def real(self) -> bool:
        """Whether the lanes are floats."""
        return self.kind in _REALS


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)  # type: ignore[no-untyped-call]


Float32, UInt32, UInt16, UInt8, Mask = (Vector(kind) for kind in ("float", "i32", "i16", "i8", "i1"))
UInt64 = Vector("i64", LANES // 4)
"""A quarter of the lanes: the 64-bit words of 64 two-byte elements, or the Philox counters of 64 elements."""
Float64 = Vector("double")


def _operation(result: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    """A function for jitted code: `build` emits its LLVM from (builder, *values)."""

    def typed(*arguments: Any) -> Any:
        return result(*arguments), lambda context, builder, typed, values: build(builder, *values)

    shapes: tuple[Callable[..., Any], ...] = (
        lambda typing, a: typed(a),
        lambda typing, a, b: typed(a, b),
        lambda typing, a, b, c: typed(a, b, c),
        lambda typing, a, b, c, d: typed(a, b, c, d),
    )
    return cast("Callable[..., Any]", intrinsic(shapes[len(signature_of(build).parameters) - 2]))


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    function = ir.FunctionType(result, [value.type for value in values])
    return builder.call(builder.module.declare_intrinsic(name, (), function), values)


def _splat(builder: Any, scalar: Any, vector: Vector) -> Any:
    """The scalar in every lane."""
    wanted = vector.llvm.element
    if scalar.type != wanted:
        scalar = (builder.fptrunc if vector.real else builder.trunc)(scalar, wanted)
    one = builder.insert_element(ir.Constant(vector.llvm, ir.Undefined), scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), None))


def _load(vector: Vector) -> Callable[..., Any]:
    def build(builder: Any, address: Any) -> Any:
        return builder.load(builder.inttoptr(address, vector.llvm.as_pointer()), align=1)

    return _operation(vector, build)


def _prefetch(builder: Any, address: Any) -> Any:
    pointer, read, near, data = builder.inttoptr(address, ir.IntType(8).as_pointer()), 0, 2, 1
    _call(builder, "llvm.prefetch", ir.VoidType(), pointer, *map(ir.IntType(32), (read, near, data)))
    return address


def _fill(vector: Vector) -> Callable[..., Any]:
    return _operation(vector, lambda builder, scalar: _splat(builder, scalar, vector))


def _store(builder: Any, address: Any, value: Any) -> Any:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)
    return ir.Constant(ir.IntType(64), 0)


def _largest(builder: Any, values: Any) -> Any:
    name = f"llvm.vector.reduce.umax.v{values.type.count}i{values.type.element.width}"
    return builder.zext(_call(builder, name, values.type.element, values), ir.IntType(64))


def _interleave(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """a0 b0 c0 d0 a1 b1 ... as 32-bit lanes."""
    a, b, c, d = (builder.trunc(quarter, ir.VectorType(ir.IntType(32), UInt64.lanes)) for quarter in (a, b, c, d))

    def joined(left: Any, right: Any, order: list[int]) -> Any:
        return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))

    half, every = LANES // 2, [[i, i + LANES // 4] for i in range(LANES // 4)]
    pairs = [i for pair in every for i in pair]
    fours = [i for j in range(0, half, 2) for i in (j, j + 1, half + j, half + j + 1)]
    return joined(joined(a, b, pairs), joined(c, d, pairs), fours)


def _packed(builder: Any, name: str, result: Any, address: Any, *values: Any) -> Any:
    """A call of one of LLVM's two functions on elements that lie one after another, as many as a mask has."""
    vector = values[-1].type
    pointer = builder.inttoptr(address, vector.element.as_pointer())
    values = (pointer, *values) if name == "expandload" else (values[-1], pointer, *values[:-1])
    typed = ir.FunctionType(result, [value.type for value in values])
    full = f"llvm.masked.{name}.v{vector.count}i{vector.element.width}"
    return builder.call(builder.module.declare_intrinsic(full, (), typed), values)


def _take(builder: Any, address: Any, where: Any, values: Any) -> Any:
    _packed(builder, "compressstore", ir.VoidType(), address, where, values)
    return ir.Constant(ir.IntType(64), 0)


def _packs() -> dict[int, bool]:
    """By bytes of an element, whether the machine moves a vector's marked elements in one instruction."""
    try:
        found = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM can't tell on this system
        return {2: False, 4: False}
    return {2: bool(found.get("avx512vbmi2")), 4: bool(found.get("avx512f"))}


PACKS = _packs()
load_f64, load_f32, load_u16, load_u64 = _load(Float64), _load(Float32), _load(UInt16), _load(UInt64)
store = _operation(types.int64, _store)
prefetch = _operation(types.int64, _prefetch)
"""Ask for the 64 bytes at an address, which need not exist: with many agents the hardware loses track of them."""

put_into = _operation(
    lambda address, where, old: old(address, where, old),
    lambda b, address, where, old: _packed(b, "expandload", old.type, address, where, old),
)
"""`old` with the elements that lie one after another at the address in the marked lanes."""
take_to = _operation(types.int64, _take)
"""The marked lanes, one after another to the address: (address, mask, values)."""

fill_f32, fill_u64, fill_u32, fill_u16, fill_u8 = (_fill(vector) for vector in (Float32, UInt64, UInt32, UInt16, UInt8))
steps_u64 = _operation(
    UInt64, lambda b, first: b.add(_splat(b, first, UInt64), ir.Constant(UInt64.llvm, list(range(UInt64.lanes))))
)
"""first, first + 1, first + 2, ..."""

bits_of = _operation(UInt32, lambda b, x: b.bitcast(x, UInt32.llvm))
from_bits = _operation(Float32, lambda b, x: b.bitcast(x, Float32.llvm))
widen = _operation(UInt32, lambda b, x: b.zext(x, UInt32.llvm))
narrow = _operation(UInt16, lambda b, x: b.trunc(x, UInt16.llvm))
to_float = _operation(Float32, lambda b, x: b.uitofp(x, Float32.llvm))
to_double = _operation(Float64, lambda b, x: b.fpext(x, Float64.llvm))
to_integer = _operation(UInt32, lambda b, x: b.fptoui(x, UInt32.llvm))
interleave = _operation(UInt32, _interleave)

magnitude = _operation(Float32, lambda b, x: _call(b, f"llvm.fabs.v{LANES}f32", x.type, x))
floor = _operation(Float32, lambda b, x: _call(b, f"llvm.floor.v{LANES}f32", x.type, x))
ceil = _operation(Float32, lambda b, x: _call(b, f"llvm.ceil.v{LANES}f32", x.type, x))
maximum = _operation(lambda x, y: x(x, y), lambda b, x, y: b.select(b.icmp_unsigned(">", x, y), x, y))
largest = _operation(types.int64, _largest)
total = _operation(types.uint64, lambda b, x: _call(b, f"llvm.vector.reduce.add.v{UInt64.lanes}i64", x.type.element, x))

ones = _operation(UInt8, lambda b, mask: b.zext(mask, UInt8.llvm))
word = _operation(types.uint64, lambda b, mask: b.zext(b.bitcast(mask, ir.IntType(LANES)), ir.IntType(64)))
mask = _operation(Mask, lambda b, word: b.bitcast(b.trunc(word, ir.IntType(LANES)), Mask.llvm))
lowest = _operation(
    types.int64, lambda b, word: _call(b, "llvm.cttz.i64", word.type, word, ir.Constant(ir.IntType(1), 1))
)
"""The place of the lowest bit of a word that is not 0."""
population = _operation(types.int64, lambda b, word: _call(b, "llvm.ctpop.i64", word.type, word))
select = _operation(lambda which, yes, no: yes(which, yes, no), lambda b, which, yes, no: b.select(which, yes, no))


def _operator(symbol: Any, integer: str, real: str = "", comparison: str = "") -> None:
    """Give vectors an operator; a scalar on the right stands in every lane."""

    @type_callable(symbol)
    def result(context: Any) -> Callable[..., Any]:
        def of(left: Any, right: Any) -> Any:
            if isinstance(left, Vector) and (left is right or not isinstance(right, Vector)):
                return Mask if comparison else left
            return None

        return of

    def lower(context: Any, builder: Any, typed: Any, values: Any) -> Any:
        vector, (left, right) = typed.args[0], values
        if not isinstance(typed.args[1], Vector):
            right = _splat(builder, right, vector)
        build = getattr(builder, real if vector.real else integer)
        return build(comparison, left, right) if comparison else build(left, right)

    for right in (Vector, types.Integer, types.Float):
        lower_builtin(symbol, Vector, right)(lower)  # type: ignore[no-untyped-call]


_operator(operator.add, "add", "fadd")
_operator(operator.iadd, "add", "fadd")
_operator(operator.sub, "sub", "fsub")
_operator(operator.mul, "mul", "fmul")
_operator(operator.truediv, "udiv", "fdiv")
_operator(operator.and_, "and_")
_operator(operator.or_, "or_")
_operator(operator.ior, "or_")
_operator(operator.xor, "xor")
_operator(operator.lshift, "shl")
_operator(operator.rshift, "lshr")
_operator(operator.gt, "icmp_unsigned", "fcmp_ordered", ">")
_operator(operator.ge, "icmp_unsigned", "fcmp_ordered", ">=")
_operator(operator.lt, "icmp_unsigned", "fcmp_ordered", "<")
_operator(operator.eq, "icmp_unsigned", "fcmp_ordered", "==")
_operator(operator.ne, "icmp_unsigned", "fcmp_unordered", "!=")
