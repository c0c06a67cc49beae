"""How the bytes of a checkpoint's files are read, one tensor at a time."""
