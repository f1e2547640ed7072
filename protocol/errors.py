"""What can go wrong between a process and the log of its run.

Invariant: every failure of the bus is one of these, and its message names the fault and the way out.

    BusError
      ServerUnreachable  nobody answers at the URL, at start or for longer than `nats.reconnect`
      JetStreamMissing   the server keeps nothing
      StorageFull        the server could not store for longer than `nats.full_wait`
      PayloadLimit       the server's `max_payload` is too small: for any run, or for one record
      RunNotFound        no such run on this server, and the caller asked not to create it
      WaitExpired        a policy version or a batch did not come within its bound
      ForkRefused        the run can't be forked at that step, or not under that name
      ForkUnfinished     the run is a fork whose copy of its parent's log is not whole
      RecordMissing      the log holds no such record
        RecordPurged     not any more: retention removed it
      RecordDamaged      a record, or the arrays it refers to, is not what was published
      BusClosed          used outside its `async with`
"""

from __future__ import annotations


class BusError(Exception):
    """The bus could not do what was asked."""


class ServerUnreachable(BusError):
    pass


class JetStreamMissing(BusError):
    pass


class StorageFull(BusError):
    pass


class PayloadLimit(BusError):
    pass


class RunNotFound(BusError):
    pass


class WaitExpired(BusError):
    pass


class RecordMissing(BusError):
    pass


class RecordPurged(RecordMissing):
    pass


class ForkRefused(BusError):
    pass


class ForkUnfinished(BusError):
    pass


class RecordDamaged(BusError):
    pass


class BusClosed(BusError):
    pass
