"""One module for each command: options, action, report. `runner.cli.app` imports the one that runs."""
