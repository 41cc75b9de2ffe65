"""A gRPC channel with a retry policy, which waits as grpc-retry-pushback-ms says."""

import json
import sys
import time

import grpc

POLICY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.01s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.service_config", json.dumps(POLICY))])
say = channel.unary_unary("/test.Echo/Say")

start = time.monotonic()
for _ in range(4):
    assert say(b"hello", timeout=10) == b"hello"
print(time.monotonic() - start)
