"""The way out of a session: an HTTP proxy of Penstock's that dials what the session's list names.

All of it is the standard library's and this folder's: the proxy is a process that imports no more.
"""
