"""The kernel `moe.get_fused_mapping`."""
