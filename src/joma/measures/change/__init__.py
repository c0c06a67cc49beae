"""Has a series changed? Detectors as pure functions of a series, each with what it promises."""
