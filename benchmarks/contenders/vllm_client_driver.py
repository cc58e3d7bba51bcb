"""Run by vLLM's own Python: vLLM's benchmark client, imported once, measuring as often as it is asked.

A line of stdin is the JSON list of the words after ``vllm bench serve``; ``done`` on stdout ends each. Importing vLLM
takes longer than a measurement, and while it runs the machine is another one.
"""

from __future__ import annotations

import json
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
print("ready", flush=True)
for line in sys.stdin:
    main(parser.parse_args(json.loads(line)))
    print("\ndone", flush=True)
