"""An import that takes long and leaves a thread."""

import time
from concurrent.futures import ThreadPoolExecutor

from fastmcp import FastMCP

mcp = FastMCP("slow")
POOL = ThreadPoolExecutor(1)
POOL.submit(time.sleep, 600)  # expect: threads-at-import
BEGAN = time.process_time()
while time.process_time() - BEGAN < 1.5:  # expect: slow-import
    pass
