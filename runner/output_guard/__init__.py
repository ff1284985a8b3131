"""Guard that keeps binary and oversized output out of the text for a model."""
