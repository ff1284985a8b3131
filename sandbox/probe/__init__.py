"""Probe of the mechanisms of this machine."""
