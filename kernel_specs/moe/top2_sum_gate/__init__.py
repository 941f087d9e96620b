"""The operator `top2_sum_gate`, which the kernel `moe.moe_topk_gate_forward` serves."""
