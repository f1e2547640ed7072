"""The life of a fork server: read what to run, come to the point where sessions start, then fork on request.

Invariant: the control socket's end is the end of everything below it: sessions, and what they started and let go of.
Until this process listens to that socket, the kernel ends it with the host.
"""

import json
import os
import signal
import socket

from . import control


def main(control_fd, host_pid):
    os.set_inheritable(control_fd, False)
    control.die_with_parent(host_pid)
    control.adopt_orphans()
    sock = socket.socket(fileno=control_fd)
    job, _ = next(requests(sock))
    if job["kind"] == "exec":
        serve_programs(sock, job)
    else:
        from . import checkpoint

        checkpoint.serve_python(sock, job)


def requests(sock):
    """Control lines from a blocking socket with their descriptors, until the other side ends."""
    buffer, fds = b"", []
    while True:
        data, ancillary, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(8 * 4))
        if not data:
            return
        fds += control.received_fds(ancillary)
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            yield json.loads(line[1:]), fds
            fds = []


def serve(sock, settle):
    """Answer until the control socket ends. In a child: returns its session's descriptor; in this process: never."""
    control.outlive_parent()  # which would kill us before we could end what is below us
    for request, fds in requests(sock):
        if "fork" in request:
            try:
                pid, pidfd = control.fork(request["fork"], settle)
            except OSError as error:
                control.send(sock, {"full": error.strerror})
            else:
                if not pid:
                    return fds[0]
                control.send(sock, {"pid": pid}, [pidfd])
                os.close(pidfd)
        elif "reap" in request:
            control.send(sock, control.reap(request["reap"]))
        for fd in fds:
            os.close(fd)
    control.end_all_children()
    os._exit(0)


def take_standard_streams(fd):
    """The session's socket becomes standard input and output."""
    os.dup2(fd, 0)
    os.dup2(fd, 1)
    os.close(fd)


def serve_programs(sock, job):
    """Any program: each session is a fresh process of it, started here so that it can't outlive the host."""
    control.send(sock, {"ready": True})
    fd = serve(sock, sock.close)
    take_standard_streams(fd)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which this interpreter ignores, and a program would inherit
    try:
        os.execvp(job["command"][0], job["command"])
    except OSError as error:
        os.write(2, f"{job['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)
