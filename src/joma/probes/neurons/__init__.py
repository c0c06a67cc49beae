"""Pattern superposition: which neurons answer to unrelated contexts."""
