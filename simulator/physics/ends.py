"""When the flows of a network end, the first one at hand.

A few ends that come and go are best kept in a heap. Of tens of thousands a heap is slow: every step of a pop looks at
an end far away in memory. So when many have gathered in the heap they are sorted into a line, once, and taken from its
end one after the other; new ones gather in the heap meanwhile.

An entry may be out of date. A flow that now ends earlier has another entry, one that ends later is entered anew when
its old entry comes up: moving entries about whenever a rate changes would cost more.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simulator.physics.flow import DONE, Flow

Entry = tuple[int, int, Flow]  # finish time or an earlier one, serial, flow
MANY = 64


class Ends:
    """heap: the code that gives a flow a finish time pushes its entry here and notes the time in `flow.queued_ps`."""

    __slots__ = ("_line", "heap")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self._line: list[Entry] = []  # the last one ends first

    def first_ps(self) -> int | None:
        """When the first of all flows ends."""
        heap, line = self.heap, self._line
        if heap and len(heap) > MANY and 4 * len(heap) > len(line):
            line += heap
            line.sort(reverse=True)
            heap.clear()
        if line and not heap:
            at_ps, _, flow = line[-1]
            if flow.finish_ps == at_ps:
                return at_ps
        while heap or line:
            in_line = not heap or (line and line[-1] < heap[0])
            at_ps, _, flow = entry = line[-1] if in_line else heap[0]
            if flow.finish_ps == at_ps:
                return at_ps
            if in_line:
                line.pop()
            else:
                heappop(heap)
            self._enter_anew(entry)
        return None

    def take(self, now_ps: int) -> list[Flow]:
        """The flows that end now, in the order of their start; they are marked as done."""
        batch: list[Flow] = []
        heap, line = self.heap, self._line
        while True:
            if line and line[-1][0] <= now_ps and (not heap or line[-1] < heap[0]):
                entry = line.pop()
            elif heap and heap[0][0] <= now_ps:
                entry = heappop(heap)
            else:
                break
            flow = entry[2]
            if flow.finish_ps == now_ps:
                flow.finish_ps = DONE
                batch.append(flow)
            else:
                self._enter_anew(entry)
        return batch

    def _enter_anew(self, entry: Entry) -> None:
        """If this was the entry of a flow that ends later by now."""
        at_ps, serial, flow = entry
        if flow.queued_ps == at_ps and flow.finish_ps > at_ps:
            flow.queued_ps = flow.finish_ps
            heappush(self.heap, (flow.finish_ps, serial, flow))
