"""The steps that every call takes, whoever executes its tool; `execution.py` has their order."""
