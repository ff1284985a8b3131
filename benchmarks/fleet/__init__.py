"""How a fleet of hosts and worker nodes grows: a capacity model and a simulation; `scripts/scale` runs it."""
