"""Pairs of e2m1 values as floats; plain PyTorch, so the folder has no spec."""
