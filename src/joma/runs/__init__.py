"""Jobs and their run directories: whole, resumable, one process at a time."""
