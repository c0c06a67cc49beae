"""Words in, settings out: what each command is asked."""
