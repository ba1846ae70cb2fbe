"""`python -m penstock` is the `penstock` command."""

from penstock.entry import main

main()
