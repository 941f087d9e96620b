"""Programs that reach every part of the CUDA toolchain and runtime."""
