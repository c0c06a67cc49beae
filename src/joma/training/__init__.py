"""How it is trained: one loop for all."""
