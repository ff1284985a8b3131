"""One confined server for each user of a file, on one machine, without an orchestrator."""
