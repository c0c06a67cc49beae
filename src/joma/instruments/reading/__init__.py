"""A model and a text: settings, loading, windows, passes, models that are lent."""
