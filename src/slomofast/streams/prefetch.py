"""Work done ahead by a background thread, in order, with a clean end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

from slomofast.core.graphs import RECORDING

T = TypeVar("T")


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them computed before they are asked for.

    An exception of the source is raised again where the consumer stands. Closing the generator (or leaving
    the loop) stops the thread and waits for it. `depth` 0 works without a thread.
    """
    if depth < 1:
        yield from items
        return
    ready: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: T | _End) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        source, end = iter(items), _End(None)
        try:
            while True:
                with RECORDING:  # images are made on the device, too
                    item = next(source, end)
                if not put(item) or item is end:
                    return
        except BaseException as error:  # carried to the consumer, whatever it is
            put(_End(error))

    thread = threading.Thread(target=work, name="slomofast-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stopped.set()
        thread.join()
