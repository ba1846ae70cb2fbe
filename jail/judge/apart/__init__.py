"""A check is taken apart: the program's process makes its calls, and another compares the results.

So the program, which may be hostile, cannot change what is compared. `assertions.py` says more.
"""
