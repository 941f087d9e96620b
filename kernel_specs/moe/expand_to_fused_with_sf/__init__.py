"""The operator `expand_to_fused_with_sf`, which the kernel `moe.expand_to_fused` serves."""
