"""Observation of calls by an operator: audit log, metrics and spans. Never a value, content or token."""
