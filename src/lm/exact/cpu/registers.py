"""A type for numba: float32 numbers of a row that stay in the vector registers of the processor.

numba has no vector type, and LLVM does not find the six rows of registers that a fast product needs.
A `Registers` holds a multiple of WIDTH numbers. Each operation rounds every number as IEEE 754 says, so the width
decides no bit. The operations are called in compiled loops only.
"""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel
from numba.extending import intrinsic, register_model

from lm.exact.order import LANES

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)


def vector_size() -> tuple[int, int]:
    """Return the numbers of a vector register, and how many registers a row of a tile takes."""
    features = binding.get_host_cpu_features()
    if numba.config.CPU_NAME == "generic":
        return 4, 2
    if features.get("avx512f"):
        return 16, 4
    if features.get("avx"):
        return 8, 2
    return 4, 4


WIDTH, VECTORS = vector_size()
COLUMNS = VECTORS * WIDTH  # of a tile
VECTOR = ir.VectorType(FLOAT, WIDTH)


class Registers(types.Type):
    """`size` float32 numbers, as size / WIDTH vectors."""

    def __init__(self, size: int):
        super().__init__(f"Registers({size})")
        self.size = size


@register_model(Registers)
class RegistersModel(PrimitiveModel):
    """Tell numba that such a value is an array of vectors."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.ArrayType(VECTOR, kind.size // WIDTH))


TILE_ROW = Registers(COLUMNS)
LANES_ROW = Registers(LANES)


def vectors_of(builder, value) -> list:
    """Return the vectors of a value."""
    return [builder.extract_value(value, i) for i in range(value.type.count)]


def value_of(builder, vectors: list):
    """Return the value that has these vectors."""
    value = ir.Constant(ir.ArrayType(VECTOR, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        value = builder.insert_value(value, vector, i)
    return value


def splat(builder, number):
    """Return a vector that has a number in all places."""
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INT32(0))
    places = ir.Constant(ir.VectorType(INT32, WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), places)


def call_fma(builder, a, b, c):
    """Return a b + c, rounded once, of numbers or of vectors."""
    name = "f32" if c.type == FLOAT else f"v{WIDTH}f32"
    function_type = ir.FunctionType(c.type, [c.type] * 3)
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.{name}")
    return builder.call(function, [a, b, c])


def address(context, builder, kind, array, start):
    """Return the addresses of the vectors of a row (N,) from `start` on; its numbers are next to each other."""
    data = context.make_array(kind)(context, builder, array).data
    first = builder.gep(builder.bitcast(data, FLOAT.as_pointer()), [start], source_etype=FLOAT)

    def of_vector(i: int):
        place = builder.gep(first, [INT64(i * WIDTH)], source_etype=FLOAT)
        return builder.bitcast(place, VECTOR.as_pointer())

    return of_vector


@intrinsic
def fma(typingctx, a, b, c):
    """Return a b + c of three numbers, rounded once."""
    number = types.float32
    return number(number, number, number), lambda context, builder, sig, args: call_fma(builder, *args)


@intrinsic
def times_power(typingctx, x, magic):
    """Return x 2^e for the integer e in the last bits of `magic`, 1.5 * 2**23 + e."""

    def generate(context, builder, sig, args):
        number, power = args
        bits = builder.bitcast(number, INT32)
        exponent = builder.shl(builder.bitcast(power, INT32), INT32(23))  # where float32 keeps its exponent
        return builder.bitcast(builder.add(bits, exponent), FLOAT)

    return types.float32(types.float32, types.float32), generate


def filled_generator(kind):
    def generate(context, builder, sig, args):
        return value_of(builder, [splat(builder, args[0])] * (kind.size // WIDTH))

    return kind(types.float32), generate


@intrinsic
def tile_row_of(typingctx, number):
    """Return a row of a tile with this number in all places."""
    return filled_generator(TILE_ROW)


@intrinsic
def lanes_of(typingctx, number):
    """Return LANES lanes with this number in all places."""
    return filled_generator(LANES_ROW)


def load_generator(kind, row):
    def generate(context, builder, sig, args):
        place = address(context, builder, sig.args[0], args[0], args[1])
        vectors = [builder.load(place(i), align=4, typ=VECTOR) for i in range(kind.size // WIDTH)]
        return value_of(builder, vectors)

    return kind(row, types.intp), generate


@intrinsic
def load_tile_row(typingctx, row, start):
    """Return COLUMNS numbers of a row (N,) from `start` on."""
    return load_generator(TILE_ROW, row)


@intrinsic
def load_lanes(typingctx, row, start):
    """Return LANES numbers of a row (N,) from `start` on."""
    return load_generator(LANES_ROW, row)


@intrinsic
def load_last_lanes(typingctx, row, start, fill):
    """Return the numbers of a row (N,) from `start` on, fewer than LANES; `fill` follows them."""

    def generate(context, builder, sig, args):
        kind = sig.args[0]
        array, start, fill = args
        place = address(context, builder, kind, array, start)

        # How many numbers are left.
        shape = context.make_array(kind)(context, builder, array).shape
        (length,) = cgutils.unpack_tuple(builder, shape, 1)
        left = builder.trunc(builder.sub(length, start), INT32)

        # LLVM's load of those elements of a vector that a mask names.
        mask_type = ir.VectorType(ir.IntType(1), WIDTH)
        load_type = ir.FunctionType(VECTOR, [VECTOR.as_pointer(), INT32, mask_type, VECTOR])
        name = f"llvm.masked.load.v{WIDTH}f32.p0"
        load = cgutils.get_or_insert_function(builder.module, load_type, name)

        integers = ir.VectorType(INT32, WIDTH)
        lefts = ir.Constant(integers, ir.Undefined)
        lefts = builder.insert_element(lefts, left, INT32(0))
        lefts = builder.shuffle_vector(lefts, lefts, ir.Constant(integers, [0] * WIDTH))
        filled = splat(builder, fill)
        alignment = INT32(4)  # bytes
        vectors = []
        for i in range(LANES // WIDTH):
            lanes = ir.Constant(integers, [i * WIDTH + j for j in range(WIDTH)])
            mask = builder.icmp_signed("<", lanes, lefts)
            vector = builder.call(load, [place(i), alignment, mask, filled])
            vectors.append(vector)
        return value_of(builder, vectors)

    return LANES_ROW(row, types.intp, types.float32), generate


@intrinsic
def store(typingctx, registers, row, start):
    """Write the numbers to a row (N,) from `start` on."""

    def generate(context, builder, sig, args):
        place = address(context, builder, sig.args[1], args[1], args[2])
        for i, vector in enumerate(vectors_of(builder, args[0])):
            builder.store(vector, place(i), align=4)
        return context.get_dummy_value()

    return types.void(registers, row, types.intp), generate


def elementwise(combine):
    """Return the generator of an operation on the vectors of two or three values; a number stands for all places."""

    def generate(context, builder, sig, args):
        count = sig.return_type.size // WIDTH
        columns = []
        for value in args:
            is_number = value.type == FLOAT
            columns.append([splat(builder, value)] * count if is_number else vectors_of(builder, value))
        return value_of(builder, [combine(builder, *vectors) for vectors in zip(*columns, strict=True)])

    return generate


def add_vectors(builder, a, b):
    return builder.fadd(a, b)


def larger_vectors(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


@intrinsic
def add(typingctx, a, b):
    """Return a + b of registers."""
    return a(a, b), elementwise(add_vectors)


@intrinsic
def larger(typingctx, a, b):
    """Return b where it is larger than a, else a; NaN is not larger."""
    return a(a, b), elementwise(larger_vectors)


@intrinsic
def add_product(typingctx, total, a, b):
    """Return a b + total of registers, each number rounded once; a may be one number."""
    return total(total, a, b), elementwise(lambda builder, total, a, b: call_fma(builder, a, b, total))


def combine_halves(combine):
    """Return the generator that combines the second half of all lanes with the first, until one number is left."""

    def generate(context, builder, sig, args):
        # Whole vectors.
        vectors = vectors_of(builder, args[0])
        while len(vectors) > 1:
            half = len(vectors) // 2
            vectors = [combine(builder, vectors[i], vectors[i + half]) for i in range(half)]

        # Halves of the vector that is left: its second half is moved to the front of a copy.
        (vector,) = vectors
        half = WIDTH // 2
        while half:
            places = [(i + half) % WIDTH for i in range(WIDTH)]
            order = ir.Constant(ir.VectorType(INT32, WIDTH), places)
            moved = builder.shuffle_vector(vector, vector, order)
            vector = combine(builder, vector, moved)
            half //= 2
        return builder.extract_element(vector, INT32(0))

    return generate


@intrinsic
def sum_of_lanes(typingctx, lanes):
    """Return the sum of all lanes, by halves."""
    return types.float32(lanes), combine_halves(add_vectors)


@intrinsic
def largest_lane(typingctx, lanes):
    """Return the largest of all lanes, by halves."""
    return types.float32(lanes), combine_halves(larger_vectors)


@intrinsic
def any_layout(typingctx, x):
    """Return the array x as one of any strides, so that a loop is compiled once for all."""
    from numba.core.imputils import impl_ret_borrowed

    kind = x.copy(layout="A")
    return kind(x), lambda context, builder, sig, args: impl_ret_borrowed(context, builder, kind, args[0])
