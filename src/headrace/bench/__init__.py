"""Measuring servers and engines: workloads, load, records of what happened, and reports of them."""
