"""Casts to and from scaled 8-bit and 4-bit floats."""

from kernel_specs._namespace import open_namespace

open_namespace(__name__, files="quant/*/op.py")
