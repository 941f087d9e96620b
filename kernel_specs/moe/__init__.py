"""Routing of tokens to experts."""

from kernel_specs._namespace import open_namespace

open_namespace(__name__, files="moe/*/op.py")
