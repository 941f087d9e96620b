"""The kernel `moe.mask_indices_by_tp`."""
