"""The transport: neighbourhood collectives of MPI."""

from mpi4py import MPI

from collops.errors import InputError
from collops.extend.exchanges import SLOTS, Exchange


class NeighbourExchange(Exchange):
    """One nonblocking all-to-all between neighbours in each slot; host arrays only. Collective."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        on_host = self.engine.memory == "host"
        self.comm.check(None if on_host else InputError("NeighbourExchange carries host arrays only"))
        self.allocate()
        sends, receives = self.pattern.sends.segments, self.pattern.receives.segments
        self._peers = [rank for rank, *_ in (*sends, *receives)]
        sources, targets = [rank for rank, *_ in receives], [rank for rank, *_ in sends]
        self._graph = self.comm.control.Create_dist_graph_adjacent(sources, targets)
        self._sends, self._receives = (
            [self._message(buffer, segments) for buffer in buffers]
            for buffers, segments in (([each[0] for each in self.outgoing], sends), (self.incoming, receives))
        )
        self._requests = [MPI.REQUEST_NULL] * SLOTS

    def _message(self, buffer, segments):
        unit = self.width * self.dtype.itemsize
        counts = [unit * (stop - start) for _, start, stop in segments]
        starts = [unit * start for _, start, _ in segments]
        return [buffer.view("B"), (counts, starts), MPI.BYTE]

    def send(self, slot, use):
        self._requests[slot] = self._graph.Ineighbor_alltoallv(self._sends[slot], self._receives[slot])

    def receive(self, slot, use):
        self.comm.wait_until(self._requests[slot].Test, "neighbourhood exchange", self._peers)

    def free(self):
        self._graph.Free()
