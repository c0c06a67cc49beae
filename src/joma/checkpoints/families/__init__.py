"""What a model family is: the names and layout of its matrices, and its anatomy."""
