"""A range coder: symbols with integer weights in, bytes out, and back.

A text is a number from 0 to below 2^96. Each symbol divides this interval in proportion to the weights of all possible
symbols and keeps its own part, so the interval shrinks by the probability of the symbol. Any number in the last
interval names the text: as many bits as its information. Once the interval is short, the first byte of its beginning
is written, and all numbers are multiplied by 256.

G. N. N. Martin, "Range encoding: an algorithm for removing redundancy from a digitised message", Video and Data
Recording Conference, Southampton, 1979. All numbers are Python integers, so the bytes are the same on every machine.
"""

STATE_BYTES = 12
WHOLE = 256**STATE_BYTES  # length of the first interval
SHORT = WHOLE // 256  # an interval of at most this length is multiplied by 256


class Encoder:
    """Encode symbols one by one, then `finish`.

    For weights that add up to at most 2^50, a symbol leaves less than 2^-38 of the interval unused.
    """

    def __init__(self):
        self.low = 0  # where the interval begins, after the bytes that are written
        self.length = WHOLE
        self.written: list[int] = []  # bytes; `finish` carries values above 255 to the byte before

    def encode(self, start: int, weight: int, total: int) -> None:
        """Encode the symbol whose part of 0 … total - 1 begins at `start` and has `weight` ≥ 1 numbers."""
        unit = self.length // total
        self.low += unit * start
        self.length = unit * weight
        while self.length <= SHORT:
            self.write_byte()
            self.length *= 256

    def write_byte(self) -> None:
        """Move the first byte of `low` to what is written."""
        self.written.append(self.low // SHORT)
        self.low = self.low % SHORT * 256

    def finish(self) -> bytes:
        """Return the shortest bytes that name a number of the interval, without zeros at the end."""
        # Round up to a number that ends in as many zero bytes as the interval allows.
        end = self.low + self.length
        step = WHOLE
        while -(-self.low // step) * step >= end:
            step //= 256
        self.low = -(-self.low // step) * step
        for _ in range(STATE_BYTES):
            self.write_byte()

        # Carry, as in adding by hand.
        for place in range(len(self.written) - 1, 0, -1):
            self.written[place - 1] += self.written[place] // 256
            self.written[place] %= 256
        return bytes(self.written).rstrip(b"\0")


class Decoder:
    """Decode the bytes of an `Encoder`: call `point` and then `remove` for each symbol."""

    def __init__(self, encoded: bytes):
        self.following = iter(encoded)  # zeros follow the last byte
        self.offset = 0  # of the text's number in the interval
        self.length = WHOLE
        for _ in range(STATE_BYTES):
            self.read_byte()

    def read_byte(self) -> None:
        """Append the next byte to `offset`."""
        self.offset = self.offset * 256 + next(self.following, 0)

    def point(self, total: int) -> int:
        """Return a number from 0 to total - 1 in the part of the symbol that comes next."""
        return self.offset // (self.length // total)

    def remove(self, start: int, weight: int, total: int) -> None:
        """Move past the symbol; the arguments are those of `Encoder.encode`."""
        unit = self.length // total
        self.offset -= unit * start
        self.length = unit * weight
        while self.length <= SHORT:
            self.read_byte()
            self.length *= 256
