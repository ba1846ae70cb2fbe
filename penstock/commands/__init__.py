"""Each subcommand has a file here."""
