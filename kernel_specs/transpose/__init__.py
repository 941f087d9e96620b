"""Transposes of matrices."""

from kernel_specs._namespace import open_namespace

open_namespace(__name__, files="transpose/*/op.py")
