"""The kernel `moe.group_count`."""
