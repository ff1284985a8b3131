"""Observation of calls: an audit log, metrics and spans. Never a value, content or token."""
