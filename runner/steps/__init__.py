"""The steps that every call takes, whoever executes its tool; `call.py` has their order."""
