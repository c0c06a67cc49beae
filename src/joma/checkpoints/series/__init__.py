"""Series of checkpoints: where they are, which are the same bytes, and what runs along them."""
