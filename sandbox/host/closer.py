"""Closing of descriptors that a worker or zygote sent, outside of the event loop.

The process that closes the last descriptor pays for its teardown, and untrusted processes may send anything:
a deleted file of a million extents, or with gigabytes of dirty pages, takes seconds. So does a socket with
such a descriptor in its queue. The event loop must not wait that long.

Source: close(2); unix(7) on SCM_RIGHTS; socket(7) on SO_LINGER.
"""

import logging
import os
import threading
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Closer"]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Closer:
    """Closes descriptors one after the other, in a thread that is there only while there are some.

    Each zygote has one of its own, so that what one user gives delays nobody else's. The end of this process
    does not wait for it.

    Attributes:
        left: The descriptors that are still to be closed.
    """

    left: deque[int] = field(init=False, default_factory=deque)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _is_running: bool = field(init=False, default=False)

    def close(self, *descriptors: int) -> None:
        """Close descriptors in a thread; return at once. The closer owns them from now on."""
        with self._lock:
            self.left.extend(descriptors)
            if self._is_running or not self.left:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="closer", daemon=True).start()
        except RuntimeError as error:
            # No thread is to be had: they stay open until the next one is closed.
            self._is_running = False
            log.warning("descriptors not closed: no thread", extra={"fault": str(error)})

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self.left:
                    self._is_running = False
                    return
                descriptor = self.left[0]
            try:
                os.close(descriptor)
            except OSError as error:
                # Closed all the same; what could not be written was a tool's own.
                log.debug("descriptor close failed", extra={"fault": str(error)})
            self.left.popleft()
