"""The steps of every call, for all executors; `call.py` has their order."""
