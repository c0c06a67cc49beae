"""What the papers prove: numbers in, numbers out, one module per result."""
