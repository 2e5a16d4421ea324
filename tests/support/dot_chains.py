"""Follow each number of a compiled `tl.dot` through its PTX: which terms are added to the accumulator, in which order.

All threads of a block execute the code together, a line after the other. An address is an int, and a number of an
operand is a `Term`; an fma of these is a `Sum`. A line that is not understood raises ValueError.
"""

import operator
import re
from typing import NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

WARP = 32
NUMBER_BYTES = 4
PARAMETER = re.compile(r"dot_kernel_param_(\d)")
OPERAND_SPACE = 1 << 32  # bytes between the addresses of two operands
OPERATORS = {
    "add": operator.add,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}


class Term(NamedTuple):
    """Number `index` of operand 0 (a), 1 (b) or 2 (the accumulator)."""

    operand: int
    index: int


class Sum(NamedTuple):
    """fma(x, y, rest)."""

    x: Term
    y: Term
    rest: "Sum | Term"


@triton.jit
def dot_kernel(a, b, c, out, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out = c + a @ b, as in lm.exact.gpu.products."""
    row = tl.arange(0, BM)[:, None]
    column = tl.arange(0, BN)[None, :]
    term = tl.arange(0, BK)
    x = tl.load(a + row * BK + term[None, :])
    y = tl.load(b + term[:, None] * BN + column)
    chain = tl.load(c + row * BN + column)
    chain = tl.dot(x, y, chain, input_precision="ieee")
    tl.store(out + row * BN + column, chain)


def compile_dot(capability: int, BM: int, BN: int, BK: int, num_warps: int) -> str:
    """Return the PTX of `dot_kernel`, compiled with the options of lm.exact.gpu.launch."""
    signature = dict.fromkeys(("a", "b", "c", "out"), "*fp32") | dict.fromkeys(("BM", "BN", "BK"), "constexpr")
    source = triton.compiler.ASTSource(dot_kernel, signature, {"BM": BM, "BN": BN, "BK": BK})
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options).asm["ptx"]


def follow(ptx: str, num_threads: int) -> dict[int, Sum | Term]:
    """Return what the code stores to each number of `out`."""
    block = Block(num_threads)
    for line in ptx[ptx.index("{") : ptx.rindex("ret;")].splitlines():
        instruction = line.split("//")[0].strip(" \t;{}")
        is_code = instruction and not instruction.startswith((".", "$"))
        if is_code and not instruction.startswith("bar."):
            block.execute(*instruction.split(maxsplit=1))
    return block.stored


class Block:
    """The registers of all threads of a block, its shared memory, and what it stored."""

    def __init__(self, num_threads: int):
        self.threads = range(num_threads)
        self.registers: list[dict] = [{"%tid.x": thread} for thread in self.threads]
        self.shared: dict[int, Sum | Term] = {}
        self.stored: dict[int, Sum | Term] = {}

    def execute(self, operation: str, arguments: str) -> None:
        """Execute an instruction in all threads."""
        words = re.findall(r"[%\w.$-]+", arguments)
        if operation.startswith("stmatrix.sync.aligned.m8n8.x4.shared"):
            self.move_matrices(words, loads=False)
        elif operation.startswith("ldmatrix.sync.aligned.m8n8.x4.shared"):
            self.move_matrices(words, loads=True)
        elif operation.startswith(("ld.shared", "st.shared", "ld.global", "st.global")):
            self.move(operation, arguments)
        elif operation == "ld.param.b64":
            operand = int(PARAMETER.fullmatch(words[1])[1])
            for registers in self.registers:
                registers[words[0]] = operand * OPERAND_SPACE
        else:
            for registers in self.registers:
                sources = [value_of(word, registers) for word in words[1:]]
                registers[words[0]] = compute(operation, sources)

    def move(self, operation: str, arguments: str) -> None:
        """Load or store one to four numbers, next to each other."""
        address_text = re.search(r"\[(.*?)\]", arguments)[1]
        names = re.findall(r"%\w+", arguments.replace(address_text, ""))
        for registers in self.registers:
            address = address_of(address_text, registers)
            for number, name in enumerate(names):
                place = address + NUMBER_BYTES * number
                if operation.startswith("ld.shared"):
                    registers[name] = self.shared[place]
                elif operation.startswith("st.shared"):
                    self.shared[place] = registers[name]
                elif operation.startswith("ld.global"):
                    registers[name] = Term(place // OPERAND_SPACE, place % OPERAND_SPACE // NUMBER_BYTES)
                else:
                    self.stored[place % OPERAND_SPACE // NUMBER_BYTES] = registers[name]

    def move_matrices(self, words: list[str], loads: bool) -> None:
        """Load or store four matrices of 8 rows of 16 bytes. A thread names a row, and has a number of each matrix."""
        names = [word for word in words if word.startswith("%")]
        address_name, *names = [names[-1], *names[:-1]] if loads else names
        offsets = [int(word) for word in words if not word.startswith("%")]
        for thread in self.threads:
            first_of_warp = thread // WARP * WARP
            for matrix, name in enumerate(names):
                row_thread = first_of_warp + 8 * matrix + thread % WARP // 4
                place = self.registers[row_thread][address_name] + sum(offsets) + NUMBER_BYTES * (thread % 4)
                if loads:
                    self.registers[thread][name] = self.shared[place]
                else:
                    self.shared[place] = self.registers[thread][name]


def value_of(word: str, registers: dict):
    """Return a register's value, or a constant."""
    if word.startswith("%"):
        return registers[word]
    return 0 if word == "global_smem" else int(word, 0)


def address_of(text: str, registers: dict) -> int:
    """Return the address "register + offset"."""
    return sum(value_of(word.strip(), registers) for word in text.split("+"))


def compute(operation: str, sources: list):
    """Return the result of an instruction without memory."""
    name = operation.split(".")[0]
    if operation == "fma.rn.f32":
        return Sum(*sources)
    if name == "mov":
        return sources[0]
    if any(not isinstance(source, int) for source in sources):
        raise ValueError(f"{operation} of a number; only fma and moves are understood")
    if name == "mad":
        return sources[0] * sources[1] + sources[2]
    if name in OPERATORS:
        return OPERATORS[name](*sources)
    if operation == "bfe.s32":
        value, first_bit, num_bits = sources
        field = value >> first_bit & (1 << num_bits) - 1
        sign = 1 << num_bits - 1
        return (field ^ sign) - sign
    raise ValueError(f"{operation} is not understood")


def terms_of(number: Sum | Term) -> list[tuple[Term, Term]]:
    """Return the factors of each term in the order in which they are added, first the accumulator beside itself."""
    factors = []
    while isinstance(number, Sum):
        factors.append(tuple(sorted((number.x, number.y))))
        number = number.rest
    return [(number, number), *reversed(factors)]
