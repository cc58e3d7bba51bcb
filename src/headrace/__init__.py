"""headrace: an LLM server that keeps latency promises."""
