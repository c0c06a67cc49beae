"""What everything may stand on: errors, files, arguments, settings, claims, progress, figures."""
