"""Network access of confined processes: the gate, destinations, DNS."""
