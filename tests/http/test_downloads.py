import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from runner.http.downloads import PURPOSE, UnsatisfiableRangeError, content_disposition, parse_range, routes
from runner.store.local import LocalStore
from runner.tokens import Tokens

DATA = bytes(range(256)) * 4096
NOW = 1_800_000_000.0
