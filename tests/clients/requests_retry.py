"""requests with urllib3's Retry, which waits as Retry-After says."""

import sys
import time

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=Retry(total=3)))

start = time.monotonic()
for _ in range(4):
    session.get(sys.argv[1], timeout=10).raise_for_status()
print(time.monotonic() - start)
