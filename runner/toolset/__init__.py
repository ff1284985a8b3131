"""Tool files ready to be called: their catalogue, policies, pools, admission."""
