"""Transformations of attention inputs."""

from kernel_specs._namespace import open_namespace

open_namespace(__name__, files="transform/*/op.py")
