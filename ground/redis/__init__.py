"""This room reaches a Redis, and lets one connection carry many commands. A command that got no
reply is sent again, in its order."""
