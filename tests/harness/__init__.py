"""Servers that die, networks that fail, processes killed at a named line.

    servers     PrivateRedis: a real server to stop, kill, freeze, restart with or without its data
    cluster     Cluster: three primaries, and a replica where a test wants a failover
    sentinel    SentinelPair: failover at a word
    proxy       Proxy: cut, freeze, delay, lose replies on the way to Redis
    tls         TLS in front of a server
    killing     run a function in a process that is SIGKILLed (or frozen) exactly where we say
    doomed      the child of `killing`; `doomed.reached(name)` names a point of a scenario
    interrupting  a loop's work, interrupted at every statement
    scripted    ScriptedServer: answers as told, for states no real server can be put into
    remains     which processes still work in a directory
    upstream    other people's files, to be run as they are
    nursery     forks processes that have imported our packages already
    commands    `penstock`, and programs, forked there; also for shells, by a `stand_in`
    leash       how all of these are started: none outlives the test run
    at_hand     the servers on this machine, for `make compat`

Tests take them as fixtures of `tests/conftest.py`: `redis` (fake and real), `real_redis`,
`private_redis`, `proxy`, `redis_cluster`, `sentinel_pair`.
"""
