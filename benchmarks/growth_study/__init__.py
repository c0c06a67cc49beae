"""What the growth of W_Q^T W_K is worth as an alarm: networks of many kinds, healthy runs and made faults."""
