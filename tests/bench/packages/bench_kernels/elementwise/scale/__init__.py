"""The kernel `elementwise.scale`."""
