"""What the papers simulate: an initial state in, a trajectory out."""
