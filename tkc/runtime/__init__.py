"""Tensors → launch: find the artifact for a tensor's device, verify it, load it, launch it."""

from tkc.runtime.collection import paused_collection

with paused_collection():
    from tkc.runtime.dispatch import layers
    from tkc.runtime.fallback import seal
    from tkc.runtime.launch import LoadedKernel, converted
    from tkc.runtime.table import KernelTable, kernel, reset

__all__ = ["KernelTable", "LoadedKernel", "converted", "kernel", "layers", "reset", "seal"]
