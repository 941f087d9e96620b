"""The kernel `moe.inplace_unique_group_indices`."""
