"""Find installed tools: where they are, and the components of a toolchain that they make."""
