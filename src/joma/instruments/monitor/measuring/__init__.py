"""What a look measures of a model, and how processes join what each of them saw."""
