"""Escape attempts against this machine: what they do, what they may not achieve, and how it is found out."""
