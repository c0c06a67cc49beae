"""What a probe measures, one section a module."""
