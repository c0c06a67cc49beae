"""What is read off tensors and curves: attention entropy, stable rank, dip and bounce."""
