"""The kernel `moe.expand_to_fused`."""
