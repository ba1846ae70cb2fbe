"""Memory and processes of a program's whole tree, counted and bounded by cgroups."""
