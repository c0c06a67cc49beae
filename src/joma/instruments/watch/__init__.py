"""Every attention call of a running model: captured, attributed, measured."""
