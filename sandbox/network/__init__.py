"""Network for those that may have some: the gate, destinations, DNS."""
