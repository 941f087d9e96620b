"""A catalogue of small kernels that the compiler's tests compile."""
