"""The kernel `moe.normalize_weight`."""
