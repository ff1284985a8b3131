"""Recognises inside the worker what the kernel refuses, so that it can be told in words; protects nothing."""
