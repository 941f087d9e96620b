"""What each family runs on a device: `correctness(device)` and `benchmarks(device)`."""
