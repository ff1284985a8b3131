"""Explanations of what the kernel refused, inside the worker; they protect nothing."""
