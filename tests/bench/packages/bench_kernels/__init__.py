"""Three hundred small kernels, all different: what loading speed is measured with."""
