"""Ahead-of-time compiler, store and loader for TileLang kernels."""
