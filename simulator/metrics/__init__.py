"""What the numbers mean: latencies, goodput, stability, intervals, and how far to trust them."""
