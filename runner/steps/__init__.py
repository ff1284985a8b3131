"""The steps of a call that `runner/call.py` takes in order."""
