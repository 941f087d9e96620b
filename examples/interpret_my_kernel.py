"""Check a TileLang kernel of your own on the CPU, with no GPU and no compiler.

Run it: python examples/interpret_my_kernel.py
"""

import tilelang.language as T
import torch

import tkc
from tkc.interpret import FaultError

ROWS = 4


def row_softmax(hidden: int, forget_a_row: bool = False):
    """A softmax over each row; with `forget_a_row`, one that leaves an element of the tile unwritten."""
    num_rows = T.dynamic("num_rows")
    filled = hidden - 1 if forget_a_row else hidden

    @T.prim_func
    def softmax(x: T.Tensor[(num_rows, hidden), "float32"], out: T.Tensor[(num_rows, hidden), "float32"]):  # noqa: F821
        with T.Kernel(T.ceildiv(num_rows, ROWS), threads=128) as block:
            tile = T.alloc_fragment((ROWS, hidden), "float32")
            largest = T.alloc_fragment((ROWS,), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            for i, j in T.Parallel(ROWS, filled):
                tile[i, j] = x[block * ROWS + i, j]
            T.reduce_max(tile, largest, dim=1)
            for i, j in T.Parallel(ROWS, hidden):
                tile[i, j] = T.exp(tile[i, j] - largest[i])
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(ROWS, hidden):
                out[block * ROWS + i, j] = tile[i, j] / total[i]

    return softmax


def main() -> None:
    x = torch.randn(10, 96)
    out = torch.empty_like(x)

    # Run the program on ordinary CPU tensors; `out` is written in place.
    tkc.interpret(row_softmax(96), x, out)
    error = (out - x.softmax(1)).abs().max().item()
    print(f"largest error against torch: {error:.2g}")

    # Run it again under the sanitizer: nothing wrote `out` before, nothing may read it first.
    tkc.interpret(row_softmax(96), x, out, sanitize=True, unwritten=("out",))
    print("the sanitizer found nothing")

    # A program with a fault: the report names the statement, the buffer and the element.
    try:
        tkc.interpret(row_softmax(96, forget_a_row=True), x, out, sanitize=True)
    except FaultError as fault:
        print("and with a fault planted:")
        print(fault.reports[0])


if __name__ == "__main__":
    main()
