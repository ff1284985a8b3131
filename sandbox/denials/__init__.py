"""Recognition of kernel denials inside the worker, to explain them in words; not a protection."""
