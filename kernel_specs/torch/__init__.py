"""The PyTorch reference of every operator, under the names that TileKernels gives them."""

from kernel_specs._namespace import open_namespace

open_namespace(__name__, files="*/*/reference.py")
