"""The kernel `moe.topk_sum_and_topk_group_idx`."""
