"""The kernel `moe.aux_fi`."""
