"""What both ways through a tile of the CUDA variant share."""

from dataclasses import dataclass

VECTOR_BYTES = 16
"""Width of every access to device memory, and what its address is a multiple of."""

WARP = 32


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a matrix that a block moves.

    Attributes:
        size_bytes: size of an element.
        rows, columns: of `x`, multiples of `vector`.
        warps: of the block.
    """

    size_bytes: int
    rows: int
    columns: int
    warps: int

    @property
    def vector(self) -> int:
        """Elements of a vector."""
        return VECTOR_BYTES // self.size_bytes

    @property
    def threads(self) -> int:
        return self.warps * WARP
