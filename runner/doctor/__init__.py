"""Checks and repairs of `runner doctor`."""
