"""The kernel `moe.moe_topk_gate_backward`."""
