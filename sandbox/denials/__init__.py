"""Recognises what the kernel refused, inside the worker; they protect nothing."""
