"""Where tokens come from: frequencies, next tokens, text."""
