"""Kernels over vectors."""
