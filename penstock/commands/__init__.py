"""Each subcommand has a file here, which is imported when it is called."""
