"""What a shell starts as `penstock`, where `commands.on_path` has put it: it loads little.

It passes its words, folder, environment and streams on to the test run, which has the nursery
fork, and each signal to the fork; and it ends as the fork does.
"""

import json
import os
import signal
import socket
import sys


def main(address: str, words: list[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(address)
        asked = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(line, [asked], [1, 2, 0])
        pid = int(line.recv(16))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(line.recv(16))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
