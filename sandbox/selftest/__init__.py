"""Escape attempts against this machine: the acts, their forbidden results, and the detection of these."""
