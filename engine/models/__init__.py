"""What a model is: its shape, weights, files and words."""
