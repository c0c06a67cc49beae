"""The command line: arguments in, functions called."""
