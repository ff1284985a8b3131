"""Fixtures of `result_fixtures`."""

from result_fixtures import home, shelf

__all__ = ["home", "shelf"]
