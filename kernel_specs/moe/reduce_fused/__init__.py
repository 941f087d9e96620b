"""The kernel `moe.reduce_fused`."""
