"""Offline generation: an engine in this process behind vLLM's classes."""
