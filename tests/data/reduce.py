"""Reduces an access log in combined format on stdin to trace.csv on stdout: when, who (a number), what came of it."""

import re
import sys
from datetime import datetime

LINE = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] ".*?" (\d{3}) ')

requests = []
for line in sys.stdin.buffer:
    address, when, status = LINE.match(line.decode("latin-1")).groups()
    second = int(datetime.strptime(when, "%d/%b/%Y:%H:%M:%S %z").timestamp())
    requests.append((second, address, status))

# The log is not quite in order; requests of one second keep theirs.
requests.sort(key=lambda request: request[0])
clients = {}
print("seconds,client,status")
for second, address, status in requests:
    client = clients.setdefault(address, len(clients) + 1)
    print(f"{second - requests[0][0]},{client},{status}")
