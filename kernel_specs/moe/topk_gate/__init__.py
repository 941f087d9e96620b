"""The kernel `moe.topk_gate`."""
