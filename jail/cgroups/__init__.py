"""Cgroups count and bound the memory and the processes of a program's whole tree. No group outlives
its program."""
