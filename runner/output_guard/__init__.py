"""What keeps binary and oversized output out of what a model reads."""
