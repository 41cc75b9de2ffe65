"""Reads limit fields, a "name: value" a line with all lines of a field joined, as http-sfv does; prints how many."""

import sys

import http_sfv

PARAMETERS = {"ratelimit": {"r": 0, "t": 0}, "ratelimit-policy": {"q": 0, "w": 1}}

count = 0
for line in sys.stdin:
    name, value = line.rstrip("\n").split(": ", 1)
    try:
        members = http_sfv.List()
        members.parse(value.encode())
        assert members, "no member"
        for member in members:
            assert isinstance(member, http_sfv.Item) and type(member.value) is str, "a member that is no string"
            least = PARAMETERS[name]
            needed = next(iter(least))
            assert needed in member.params, f"no {needed}"
            for key, number in member.params.items():
                if key in least:
                    assert type(number) is int and number >= least[key], f"{key} is {number!r}"
    except Exception as fault:
        sys.exit(f"{line}{fault!r}")
    count += 1
print(count)
