"""The layers that keep binary and oversized output out of what a model reads."""
