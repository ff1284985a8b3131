"""Closing of descriptors received from a worker or zygote, outside the event loop.

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
    """Closes descriptors one after the other, in a thread that exists only while any are left.

    Each zygote has its own closer, so that one user's descriptors do not delay another user's. The exit of
    this process does not wait for the thread.

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
            # No thread could be started: the descriptors stay open until the next `close`.
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
                # The descriptor is closed anyway; the data that could not be written was the tool's own.
                log.debug("descriptor close failed", extra={"fault": str(error)})
            self.left.popleft()
