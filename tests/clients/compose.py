"""Reads YAML, with `$$` as Compose reads it, and prints it as JSON."""

import json
import sys

import yaml


def text(value):
    """Every text as the container gets it."""
    if isinstance(value, dict):
        return {key: text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [text(item) for item in value]
    return value.replace("$$", "$") if isinstance(value, str) else value


json.dump(text(yaml.safe_load(sys.stdin)), sys.stdout)
