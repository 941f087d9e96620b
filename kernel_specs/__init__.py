"""A kernel library for MoE models: every operator with a PyTorch reference, compiled ahead of time."""
