"""Contiguous tensors of any size, cast to another floating dtype."""
