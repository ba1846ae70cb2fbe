"""The fork server runs this: the standard library alone, nothing of Penstock's own rooms.

Loaded by a clean interpreter as the package `inside`, and by the client for the
wire format that both ends speak.
"""
