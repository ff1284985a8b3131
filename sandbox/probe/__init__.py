"""What this machine can confine with."""
